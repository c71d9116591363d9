"""What is done with the training that hooks capture: a pool makes it, or it is looked at."""

from typing import TYPE_CHECKING, Protocol

from fdt.base.patch import Patches

if TYPE_CHECKING:
    from fdt.base.config import RunConfig
    from fdt.capture.inspection import Inspection
    from fdt.capture.keras.hooks import KerasHooks
    from fdt.capture.keras.version import KerasVersion
    from fdt.capture.loop.calls import Steps
    from fdt.capture.loop.elements import Elements
    from fdt.capture.remote import RemoteVariables
    from fdt.capture.rows import RowNumbers
    from fdt.capture.variable_access import VariableAccess
    from fdt.client.findings import Findings
    from fdt.client.session import Session
    from fdt.forecast.samples import Samples


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
