"""Installs and removes the hooks that take training steps out of a running script. Each form of training has a package."""

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from wrapt import register_post_import_hook

from fdt.base.patch import Patches
from fdt.capture import private_names

if TYPE_CHECKING:
    from fdt.capture.keras.version import KerasVersion
    from fdt.capture.purpose import Capture
    from fdt.capture.refusals import Refusals
    from fdt.capture.rows import RowNumbers
    from fdt.capture.timing import Count, StepCount
    from fdt.capture.variable_access import VariableAccess

# Number of sets of hooks in place.
_num_hooked = 0


def is_hooked() -> bool:
    """Whether hooks already capture this process's training."""
    return _num_hooked > 0


def hooks(
    capture: "Capture",
    note: Callable[[str, str, str], None] = lambda *_: None,
    stays: Callable[[str], None] | None = None,
) -> AbstractContextManager[None]:
    """Captures training that the script starts within the context.

    Args:
        capture: Decides what is done with it.
        note: Called for each refusal: where, what, and why.
        stays: Called for eager steps that run on this machine; None refuses them.
    """
    from fdt.capture.refusals import Refusals
    from fdt.script.outline import files

    made = _Hooks(capture, Refusals(note, stays))
    modules = {"keras": made.keras_3, "tensorflow": made.tensorflow, "tf_keras": made.keras_2}
    return _when_imported(files.watch, **modules, **{"horovod.tensorflow": made.horovod})


class _Hooks:
    """The hooks of each module, which are made when the script has imported it."""

    def __init__(self, capture: "Capture", refusals: "Refusals") -> None:
        self._capture, self._refusals = capture, refusals

    def keras_3(self, patches: Patches) -> None:
        keras = _keras_3()
        from fdt.capture.refusals import guard_keras_optimizers

        guard_keras_optimizers(patches, self._refusals)
        self._capture.keras_fit(keras, self._touch).install(patches, self._row_numbers)

    def keras_2(self, patches: Patches) -> None:
        keras = _keras_2()
        from fdt.capture.keras.keras_2_step import OPTIMIZERS
        from fdt.capture.refusals import guard_keras_2_optimizers

        guard_keras_2_optimizers(patches, self._refusals, OPTIMIZERS)
        self._capture.keras_fit(keras, self._touch).install(patches, self._row_numbers)

    def tensorflow(self, patches: Patches) -> None:
        private_names.require("tensorflow", private_names.TENSORFLOW)
        from fdt.capture.loop.calls import Loops
        from fdt.capture.refusals import guard_v1_optimizers
        from fdt.capture.session.runs import Sessions
        from fdt.capture.strategies import Strategies

        self._capture.tensorflow_imported(patches)
        guard_v1_optimizers(patches, self._refusals)
        elements = self._capture.loop_elements(self._row_numbers)
        loops = Loops(self._capture.loop_steps, self._refusals, self._touch, elements)
        loops.install(patches)
        Sessions(loops.steps).install(patches)
        self._row_numbers.install(patches)
        Strategies().install(patches)

    def horovod(self, patches: Patches) -> None:
        from fdt.capture.horovod import install
        from fdt.client.report import say

        install(patches, say, sys.modules["horovod.tensorflow"])

    @functools.cached_property
    def _row_numbers(self) -> "RowNumbers":
        from fdt.capture.rows import RowNumbers

        return RowNumbers()

    @functools.cached_property
    def _touch(self) -> "VariableAccess":
        from fdt.capture.variable_access import VariableAccess

        return VariableAccess()


def _keras_3() -> "KerasVersion":
    private_names.require("keras", private_names.KERAS)
    from fdt.capture.keras.keras_3 import Keras3

    return Keras3()


def _keras_2() -> "KerasVersion":
    private_names.require("tf_keras", private_names.KERAS_2)
    from fdt.capture.keras.keras_2 import Keras2

    return Keras2()


def traced_anew(say: Callable[[str], None]) -> AbstractContextManager[None]:
    """Has functions traced before the context traced again within it, and those traced within it after it; see `retracing.py`.

    Args:
        say: Called with messages about the script's own functions among these.
    """
    if "tensorflow" not in sys.modules:
        # Nothing has been traced yet; functions traced within the context are found at its end.
        return _traced_later()
    from fdt.capture import retracing

    return retracing.traced_anew(say)


@contextmanager
def _traced_later() -> Iterator[None]:
    yield
    if "tensorflow" in sys.modules:
        from fdt.capture import retracing

        retracing.forget_all()


def timed(count: "Count") -> AbstractContextManager[None]:
    """Counts the steps of training that the script starts within the context, which stays on this machine.

    Args:
        count: Called with the steps that the script makes.
    """

    def keras(version: Callable[[], "KerasVersion"], patches: Patches) -> None:
        made = version()
        from fdt.capture.timing import TimedKeras

        TimedKeras(made, steps()).install(patches)

    def tensorflow(patches: Patches) -> None:
        private_names.require("tensorflow", private_names.TENSORFLOW)
        from fdt.capture.timing import TimedLoops, TimedSessions

        TimedLoops(steps()).install(patches)
        TimedSessions(steps()).install(patches)

    @functools.cache
    def steps() -> "StepCount":
        from fdt.capture.timing import StepCount

        return StepCount(count)

    modules = {"keras": functools.partial(keras, _keras_3), "tf_keras": functools.partial(keras, _keras_2)}
    return _when_imported(**modules, tensorflow=tensorflow)


@contextmanager
def _when_imported(
    at_once: Callable[[Patches], None] | None = None, **installers: Callable[[Patches], None]
) -> Iterator[None]:
    """Installs a module's hooks when the script itself imports the module, within the context.

    Nothing is imported beforehand. Once the context is left the hooks do nothing (an import hook cannot be taken back).

    Args:
        at_once: Installs hooks that wait for no module.
        installers: Install the hooks of a module, by its name.
    """
    global _num_hooked
    patches = Patches()
    if at_once is not None:
        at_once(patches)
    active = True
    _num_hooked += 1

    def hook(install: Callable[[Patches], None], _: Any) -> None:
        if active:
            install(patches)

    for module, install in installers.items():
        register_post_import_hook(functools.partial(hook, install), module)
    try:
        yield
    finally:
        active = False
        _num_hooked -= 1
        patches.undo()
