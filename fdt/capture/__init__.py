"""Capture: hooks in, hooks out. One module for each form of script."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from wrapt import register_post_import_hook

from fdt import messages
from fdt.capture.patch import Patches

if TYPE_CHECKING:
    from fdt.capture.keras_fit import KerasFit
    from fdt.config import RunConfig
    from fdt.findings import Findings
    from fdt.session import Session


def training(session: "Session") -> Callable[[], "KerasFit"]:
    """Returns what makes the hooks through which training goes to the session's pool."""

    def make() -> "KerasFit":
        from fdt.capture.keras_fit import KerasFit

        fit = KerasFit(session)
        session.before_close(fit.close)
        return fit

    return make


def checking(config: "RunConfig", findings: "Findings") -> Callable[[], "KerasFit"]:
    """Returns what makes the hooks that look at training and let none happen."""

    def make() -> "KerasFit":
        from fdt.capture.keras_check import KerasCheck

        return KerasCheck(config, findings)

    return make


@contextmanager
def hooks(
    make_fit: Callable[[], "KerasFit"], note: Callable[[str, str, str], None] = lambda *_: None
) -> Iterator[None]:
    """Within it, training that the script starts is taken over.

    Nothing is imported beforehand: the hooks go in when the script itself imports Keras or TensorFlow, and do nothing
    once the context is left (an import hook cannot be taken back).

    Args:
        make_fit: From `training` or `checking`; called when Keras has been imported.
        note: Is told of what is refused: where, what, and why.
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
        from fdt.capture.refusals import guard_keras_optimizers

        guard_keras_optimizers(patches, note)
        make_fit().install(patches)

    def tensorflow(patches: Patches) -> None:
        from fdt.capture.refusals import guard_v1_optimizers

        guard_v1_optimizers(patches, note)

    def keras_2(patches: Patches) -> None:
        from fdt.capture.refusals import guard_keras_2

        guard_keras_2(patches, note)

    when_imported("keras", keras_3)
    when_imported("tensorflow", tensorflow)
    when_imported("tf_keras", keras_2)
    try:
        yield
    finally:
        active = False
        patches.undo()
