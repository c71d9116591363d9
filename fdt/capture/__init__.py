"""Capture: hooks in, hooks out. One module for each form of script."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from wrapt import register_post_import_hook

from fdt import messages
from fdt.capture.patch import Patches

if TYPE_CHECKING:
    from fdt.capture.keras.fit import KerasFit
    from fdt.capture.keras.version import KerasVersion
    from fdt.capture.loop.calls import Steps
    from fdt.capture.loop.touch import Touch
    from fdt.config import RunConfig
    from fdt.findings import Findings
    from fdt.samples import Samples
    from fdt.session import Session


class Capture(Protocol):
    """What becomes of training. Nothing is imported before the script itself needs it."""

    def keras_fit(self, keras: "KerasVersion") -> "KerasFit":
        """Returns the hooks of Keras's `fit`; called when Keras has been imported."""

    def loop_steps(self, touch: "Touch") -> "Steps":
        """Returns what runs the steps of loops of the script's own; called before the first one."""


class Training:
    """It goes to a session's pool; see `Capture`."""

    def __init__(self, session: "Session"):
        self._session = session

    def keras_fit(self, keras: "KerasVersion") -> "KerasFit":
        """See `Capture`."""
        from fdt.capture.keras.fit import KerasFit

        fit = KerasFit(self._session, keras)
        self._session.before_close(fit.close)
        return fit

    def loop_steps(self, touch: "Touch") -> "Steps":
        """See `Capture`."""
        from fdt.capture.loop.run import LoopRun
        from fdt.capture.loop.verify import VerifiedLoop

        verification = self._session.verification
        run = (
            LoopRun(self._session, touch) if verification is None else VerifiedLoop(self._session, touch, verification)
        )
        self._session.before_close(run.close)
        return run


class Checking:
    """It is looked at, and none happens; see `Capture`."""

    def __init__(self, config: "RunConfig", findings: "Findings"):
        self._config, self._findings = config, findings

    def keras_fit(self, keras: "KerasVersion") -> "KerasFit":
        """See `Capture`."""
        from fdt.capture.keras.check import KerasCheck

        return KerasCheck(self._config, self._findings, keras)

    def loop_steps(self, touch: "Touch") -> "Steps":
        """See `Capture`."""
        from fdt.capture.loop.check import LoopCheck

        return LoopCheck(self._config, self._findings)


class Sampling:
    """It is looked at, and one batch is kept of each step; see `Capture`."""

    def __init__(self, config: "RunConfig", findings: "Findings", samples: "Samples"):
        self._config, self._findings, self._samples = config, findings, samples

    def keras_fit(self, keras: "KerasVersion") -> "KerasFit":
        """See `Capture`."""
        from fdt.capture.keras.predict import KerasPredict

        return KerasPredict(self._config, self._findings, self._samples, keras)

    def loop_steps(self, touch: "Touch") -> "Steps":
        """See `Capture`."""
        from fdt.capture.loop.predict import LoopPredict

        return LoopPredict(self._config, self._findings, self._samples)


@contextmanager
def hooks(capture: Capture, note: Callable[[str, str, str], None] = lambda *_: None) -> Iterator[None]:
    """Within it, training that the script starts is taken over.

    Nothing is imported beforehand: the hooks go in when the script itself imports Keras or TensorFlow, and do nothing
    once the context is left (an import hook cannot be taken back).

    Args:
        capture: What becomes of it.
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
        from fdt.capture.keras.keras_3 import Keras3
        from fdt.capture.refusals import guard_keras_optimizers

        guard_keras_optimizers(patches, note)
        capture.keras_fit(Keras3()).install(patches)

    def tensorflow(patches: Patches) -> None:
        from fdt.capture.loop.calls import Loops
        from fdt.capture.refusals import guard_v1_optimizers
        from fdt.capture.session.runs import Sessions

        guard_v1_optimizers(patches, note)
        loops = Loops(capture.loop_steps, note)
        loops.install(patches)
        Sessions(loops.steps).install(patches)

    def keras_2(patches: Patches) -> None:
        from fdt.capture.keras.keras_2 import Keras2
        from fdt.capture.refusals import guard_keras_2_optimizers

        guard_keras_2_optimizers(patches, note)
        capture.keras_fit(Keras2()).install(patches)

    when_imported("keras", keras_3)
    when_imported("tensorflow", tensorflow)
    when_imported("tf_keras", keras_2)
    try:
        yield
    finally:
        active = False
        patches.undo()
