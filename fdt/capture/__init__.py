"""Capture: hooks in, hooks out. One module for each form of script."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from wrapt import register_post_import_hook

from fdt import messages
from fdt.capture.patch import Patches

if TYPE_CHECKING:
    from fdt.session import Session


@contextmanager
def hooks(session: "Session") -> Iterator[None]:
    """Within it, training that the script starts goes to the session's pool.

    Nothing is imported beforehand: the hooks go in when the script itself imports Keras or TensorFlow, and do nothing
    once the context is left (an import hook cannot be taken back).
    """
    messages.hide()
    patches = Patches()
    active = True

    def when_imported(module: str, install: Callable[[Patches], None]) -> None:
        def hook(_: Any) -> None:
            if active:
                install(patches)

        register_post_import_hook(hook, module)

    def keras_3(patches: Patches) -> None:
        from fdt.capture.keras_fit import KerasFit
        from fdt.capture.refusals import guard_keras_optimizers

        guard_keras_optimizers(patches)
        KerasFit(session).install(patches)

    def tensorflow(patches: Patches) -> None:
        from fdt.capture.refusals import guard_v1_optimizers

        guard_v1_optimizers(patches)

    def keras_2(patches: Patches) -> None:
        from fdt.capture.refusals import guard_keras_2

        guard_keras_2(patches)

    when_imported("keras", keras_3)
    when_imported("tensorflow", tensorflow)
    when_imported("tf_keras", keras_2)
    try:
        yield
    finally:
        active = False
        patches.undo()
