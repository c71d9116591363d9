"""Installs and removes the hooks that take training steps out of a running script. Each form of training has a package."""

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from wrapt import register_post_import_hook

from fdt.base.patch import Patches
from fdt.capture import private_names

if TYPE_CHECKING:
    from fdt.base.config import RunConfig
    from fdt.capture.inspection import Inspection
    from fdt.capture.keras.hooks import KerasHooks
    from fdt.capture.keras.version import KerasVersion
    from fdt.capture.loop.calls import Steps
    from fdt.capture.loop.elements import Elements
    from fdt.capture.remote import RemoteVariables
    from fdt.capture.rows import RowNumbers
    from fdt.capture.timing import Count, StepCount
    from fdt.capture.variable_access import VariableAccess
    from fdt.client.findings import Findings
    from fdt.client.session import Session
    from fdt.forecast.samples import Samples


# Number of sets of hooks in place.
_num_hooked = 0


def is_hooked() -> bool:
    """Whether hooks already capture this process's training."""
    return _num_hooked > 0


class Capture(Protocol):
    """Decides what is done with the script's training. Imports nothing before the script itself needs it."""

    def tensorflow_imported(self, patches: Patches) -> None:
        """Prepares this process's devices; called when TensorFlow has been imported, and before the script uses it.

        Args:
            patches: Receives hooks.
        """

    def keras_fit(self, keras: "KerasVersion", touch: "VariableAccess") -> "KerasHooks":
        """Returns the hooks of Keras's `fit`; called when Keras has been imported.

        Args:
            keras: The generation of Keras.
            touch: Reports when the script reads variables.
        """

    def loop_steps(self, touch: "VariableAccess") -> "Steps":
        """Returns the object that runs steps of the script's own loops; called before the first step."""

    def loop_elements(self, row_numbers: "RowNumbers") -> "Elements | None":
        """Returns the hooks by which such loops get elements that the workers read; None if this machine reads all.

        Args:
            row_numbers: Knows the order of the script's data sets.
        """


class Training(Capture):
    """Sends training to a session's pool."""

    def __init__(self, session: "Session"):
        self._session = session
        # One for all forms of training: they may share variables.
        self._remote: RemoteVariables | None = None

    def tensorflow_imported(self, patches: Patches) -> None:
        from fdt.capture import gpus
        from fdt.client.report import say

        if self._session.has_workers_here:
            gpus.leave_to_workers(patches, self._session.config.num_workers, say)
        if self._session.verification is not None:
            gpus.compute_in_full_precision()

    def keras_fit(self, keras: "KerasVersion", touch: "VariableAccess") -> "KerasHooks":
        from fdt.capture.keras.fit import KerasFit

        if self._session.config.in_double:
            keras.compute_in_double()
        fit = KerasFit(self._session, keras, self._variables(touch))
        self._session.before_close(fit.close)
        return fit

    def loop_steps(self, touch: "VariableAccess") -> "Steps":
        from fdt.capture.loop.run import LoopRun
        from fdt.capture.loop.verify import VerifiedLoop

        verification, variables = self._session.verification, self._variables(touch)
        run = (
            LoopRun(self._session, variables)
            if verification is None
            else VerifiedLoop(self._session, variables, verification)
        )
        self._session.before_close(run.close)
        return run

    def loop_elements(self, row_numbers: "RowNumbers") -> "Elements | None":
        from fdt.capture.loop.elements import Elements

        # What is verified is made here, too.
        return Elements(row_numbers, self._session.config) if self._session.verification is None else None

    def _variables(self, touch: "VariableAccess") -> "RemoteVariables":
        from fdt.capture.remote import RemoteVariables

        if self._remote is None:
            self._remote = RemoteVariables(self._session, touch)
        return self._remote


class Inspecting(Capture):
    """Traces training and runs none."""

    def __init__(self, config: "RunConfig", findings: "Findings", samples: "Samples | None" = None):
        """
        Args:
            config: The run's configuration.
            findings: Receives a description of each training, if no samples are wanted, and what cannot be distributed.
            samples: Receives each training's step with a batch.
        """
        self._config, self._findings, self._samples = config, findings, samples

    def tensorflow_imported(self, patches: Patches) -> None:
        from fdt.capture import gpus

        gpus.leave_to_workers(patches, self._config.num_workers, lambda _: None)

    def keras_fit(self, keras: "KerasVersion", touch: "VariableAccess") -> "KerasHooks":
        from fdt.capture.keras.check import KerasCheck

        return KerasCheck(self._inspection(), keras)

    def loop_steps(self, touch: "VariableAccess") -> "Steps":
        from fdt.capture.loop.check import LoopCheck

        return LoopCheck(self._inspection())

    def loop_elements(self, row_numbers: "RowNumbers") -> "Elements":
        from fdt.capture.loop.elements import Elements

        return Elements(row_numbers, self._config, looks_count=False)

    def _inspection(self) -> "Inspection":
        from fdt.capture.inspection import Description, Sampling

        if self._samples is None:
            return Description(self._config, self._findings)
        return Sampling(self._config, self._findings, self._samples)


def hooks(
    capture: Capture,
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

    refusals = Refusals(note, stays)

    def keras_3(patches: Patches) -> None:
        private_names.require("keras", private_names.KERAS)
        from fdt.capture.keras.keras_3 import Keras3
        from fdt.capture.refusals import guard_keras_optimizers

        guard_keras_optimizers(patches, refusals)
        capture.keras_fit(Keras3(), touch()).install(patches, row_numbers())

    def tensorflow(patches: Patches) -> None:
        private_names.require("tensorflow", private_names.TENSORFLOW)
        from fdt.capture.loop.calls import Loops
        from fdt.capture.refusals import guard_v1_optimizers
        from fdt.capture.session.runs import Sessions
        from fdt.capture.strategies import Strategies

        capture.tensorflow_imported(patches)
        guard_v1_optimizers(patches, refusals)
        loops = Loops(capture.loop_steps, refusals, touch(), capture.loop_elements(row_numbers()))
        loops.install(patches)
        Sessions(loops.steps).install(patches)
        row_numbers().install(patches)
        Strategies().install(patches)

    def keras_2(patches: Patches) -> None:
        private_names.require("tf_keras", private_names.KERAS_2)
        from fdt.capture.keras.keras_2 import Keras2
        from fdt.capture.keras.keras_2_step import OPTIMIZERS
        from fdt.capture.refusals import guard_keras_2_optimizers

        guard_keras_2_optimizers(patches, refusals, OPTIMIZERS)
        capture.keras_fit(Keras2(), touch()).install(patches, row_numbers())

    def horovod(patches: Patches) -> None:
        from fdt.capture.horovod import install
        from fdt.client.report import say

        install(patches, say, sys.modules["horovod.tensorflow"])

    @functools.cache
    def row_numbers() -> "RowNumbers":
        from fdt.capture.rows import RowNumbers

        return RowNumbers()

    @functools.cache
    def touch() -> "VariableAccess":
        from fdt.capture.variable_access import VariableAccess

        return VariableAccess()

    modules = {"keras": keras_3, "tensorflow": tensorflow, "tf_keras": keras_2, "horovod.tensorflow": horovod}
    return _when_imported(files.watch, **modules)


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

    def keras_3(patches: Patches) -> None:
        private_names.require("keras", private_names.KERAS)
        from fdt.capture.keras.keras_3 import Keras3
        from fdt.capture.timing import TimedKeras

        TimedKeras(Keras3(), steps()).install(patches)

    def tensorflow(patches: Patches) -> None:
        private_names.require("tensorflow", private_names.TENSORFLOW)
        from fdt.capture.timing import TimedLoops, TimedSessions

        TimedLoops(steps()).install(patches)
        TimedSessions(steps()).install(patches)

    def keras_2(patches: Patches) -> None:
        private_names.require("tf_keras", private_names.KERAS_2)
        from fdt.capture.keras.keras_2 import Keras2
        from fdt.capture.timing import TimedKeras

        TimedKeras(Keras2(), steps()).install(patches)

    @functools.cache
    def steps() -> "StepCount":
        from fdt.capture.timing import StepCount

        return StepCount(count)

    return _when_imported(keras=keras_3, tensorflow=tensorflow, tf_keras=keras_2)


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
