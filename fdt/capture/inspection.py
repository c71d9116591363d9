"""Takes training steps that are traced and not trained: `fdt check` describes them, `fdt predict` keeps batches of them."""

import abc
import dataclasses
import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from fdt.base.config import RunConfig
from fdt.capture.step.divided import layer_exchanges
from fdt.capture.step.traced_step import TracedStep
from fdt.client.findings import Finding, Findings
from fdt.division.variable_layouts import need_of
from fdt.forecast.samples import Sample, Samples


@dataclasses.dataclass(frozen=True)
class SeenStep:
    """A training step that the script would make.

    Attributes:
        where: File and line.
        what: The call.
        traced: The step.
        describe: Returns lines about the training.
        batch: Returns a batch, [rows, ...] each.
        num_steps: How many steps the call would make; None if its data do not tell.
    """

    where: str
    what: str
    traced: TracedStep
    describe: Callable[[], Sequence[str]]
    batch: Callable[[], Sequence[np.ndarray]]
    num_steps: int | None


class Inspection(abc.ABC):
    """Takes the steps.

    Attributes:
        findings: Receives what cannot be distributed.
        needs_batch: Whether it reads a step's batch.
    """

    needs_batch = False

    def __init__(self, config: RunConfig, findings: Findings) -> None:
        self.config, self.findings = config, findings

    @abc.abstractmethod
    def add(self, step: SeenStep) -> None:
        """Takes a step; called each time that the script reaches it."""


class Description(Inspection):
    """Describes each step: `fdt check`."""

    def add(self, step: SeenStep) -> None:
        self.findings.add(Finding(step.where, step.what, tuple(step.describe())))


class Sampling(Inspection):
    """Keeps each step with one batch of each size: `fdt predict` measures them afterwards."""

    needs_batch = True

    def __init__(self, config: RunConfig, findings: Findings, samples: Samples) -> None:
        super().__init__(config, findings)
        self._samples = samples
        self._digests: dict[TracedStep, bytes] = {}

    def add(self, step: SeenStep) -> None:
        traced, arrays = step.traced, step.batch()
        if traced not in self._digests:
            program = traced.program.SerializeToString(deterministic=True)
            self._digests[traced] = hashlib.sha256(program).digest()
        shapes = tuple(array.shape for array in arrays)

        def sample() -> Sample:
            exchanges = layer_exchanges(traced, shapes, self.config)
            return Sample(traced.program, traced.variables, arrays, *exchanges, need_of(traced.program))

        # One program serves batches of several sizes, which take different times.
        self._samples.add((self._digests[traced], shapes), step.where, step.what, sample, step.num_steps)
