"""Holds the result of a trace: the program, and what links it to the script's own objects."""

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from fdt.capture.step.summaries import Summary, write
from fdt.capture.step.without_data import WithoutData
from fdt.capture.watching import Watch
from fdt.errors import UnsupportedError
from fdt.program.packing import unpack_outputs
from fdt.transport.blobs import Buffer
from fdt.v1 import program_pb2


class Known:
    """A place in the step's logs that holds the same value in every step."""

    def __init__(self, value: Any):
        self.value = value


class MetricResult:
    """A place in the step's logs that holds a metric's result."""

    def __init__(self, metric: Any):
        self.metric = metric


class TracedStep:
    """A program and its links to the script's objects.

    Attributes:
        program: The StepProgram.
        variables: The script's tf.Variables, in the program's order.
        normalisations: The BatchNormalization layers that the step calls.
        is_random: Whether it draws random numbers.
        prints: Whether its operations print where they run.
        graph: FuncGraph of step(share, *batch).
        moved: The name of a variable that its own code writes before it computes a gradient by it; None if there is none.
        watch: What its Python read, if these values must not change.
        summaries: The summaries that it writes; their tensors are its last outputs.
        scales_half: Whether it computes in float16, and scales its loss for that.
        random_states: Variables, not the script's, in which random operations count what they have drawn.
        is_any_size: Whether plain python has one function for batches of all sizes.
        draws_by_size: Whether plain python has a function for each size, whose random operations count what they have drawn.
    """

    watch: Watch | None = None
    summaries: Sequence[Summary] = ()
    random_states: Sequence[tf.Variable] = ()
    is_any_size = draws_by_size = scales_half = False

    def __init__(
        self,
        program: program_pb2.StepProgram,
        variables: list[tf.Variable],
        logs: Any,
        written: set[int],
        graph: Any,
        normalisations: Iterable[Any] = (),
        is_random: bool = False,
        prints: bool = False,
        moved: str | None = None,
    ):
        self.program = program
        self.variables = variables
        self.normalisations = tuple(normalisations)
        self.is_random = is_random or any(v.role == program_pb2.ROLE_SEED for v in program.variables)
        self.prints, self.moved, self.graph = prints, moved, graph
        self._written = written
        # By the specs of a batch.
        self._without_data: dict[str, WithoutData] = {}
        self._logs = logs
        self._leaves: list[Any] = tf.nest.flatten(logs)
        # To ask for it takes as long as the rest of a small step's results.
        self._are_tensors = [tf.is_tensor(leaf) for leaf in self._leaves]

    def run_out(self, specs: Sequence[tf.TensorSpec] | None = None) -> None:
        """Makes the changes here that plain python makes in a step that finds no more data.

        Args:
            specs: Specs of a batch's arrays in plain python; None if they are as traced.
        """
        key = repr(specs)
        if key not in self._without_data:
            self._without_data[key] = WithoutData(self.graph, self.variables, specs)
        self._without_data[key]()

    def trained(self) -> list[tf.Variable]:
        """Returns the variables by which gradients are computed."""
        indices = {gradient.variable for hole in self.program.holes for gradient in hole.gradients}
        return [self.variables[i] for i in sorted(indices)]

    def writes(self, variable: tf.Variable) -> bool:
        """Returns whether the step may change a variable."""
        return id(variable) in self._written

    def follow(self, values: Mapping[int, Any]) -> None:
        """Sets its random states, which a step made on this machine does not advance.

        Args:
            values: Values of its variables, by place.
        """
        states = set(map(id, self.random_states))
        for place, variable in enumerate(self.variables):
            if id(variable) in states:
                variable.assign(values[place])

    def outputs(self) -> list[Any]:
        """Returns the leaves of what train_step returned: tensors, and metrics in place of their results."""
        leaves: list[Any] = tf.nest.flatten(self._logs)
        return leaves

    def placeholder(self) -> Any:
        """Returns the structure of what train_step returned, with zeros."""
        return tf.nest.map_structure(lambda leaf: 0.0, self._logs)

    def logs(self, outputs: Buffer) -> Any:
        """Returns what train_step returned.

        Args:
            outputs: See `values`.
        """
        return tf.nest.pack_sequence_as(self._logs, self.values(outputs))

    def values(self, outputs: Buffer) -> list[Any]:
        """Returns the leaves of what train_step returned.

        Args:
            outputs: The step's outputs that are no metric's results, packed. The state of the script's own metrics must
                have been assigned: their results are computed here.
        """
        rest = iter(self._unpacked(outputs))
        known: dict[int, Any] = {}

        def value(leaf: Any, is_tensor: bool) -> Any:
            if isinstance(leaf, Known):
                return tf.constant(leaf.value)
            if isinstance(leaf, MetricResult):
                if id(leaf.metric) not in known:
                    known[id(leaf.metric)] = leaf.metric.result()
                return known[id(leaf.metric)]
            return tf.convert_to_tensor(next(rest)) if is_tensor else leaf

        return list(map(value, self._leaves, self._are_tensors))

    def write_summaries(self, outputs: Buffer) -> None:
        """Writes the summaries of a step, given its outputs, packed."""
        values = self._unpacked(outputs)
        write(self.summaries, values[len(values) - sum(len(each.tensors) for each in self.summaries) :])

    def _unpacked(self, outputs: Buffer) -> list[Any]:
        return unpack_outputs(outputs, self._described)

    @functools.cached_property
    def _described(self) -> list[program_pb2.Tensor]:
        # In its first use the program has all its outputs.
        return [output.tensor for output in self.program.outputs]


def refuse_moved(traced: TracedStep) -> None:
    """Refuses a step whose second gradient asynchronous workers would compute from the wrong parameters.

    Raises:
        UnsupportedError: It changes a parameter before it computes a gradient by it.
    """
    if traced.moved is not None:
        raise UnsupportedError(
            f"The step changes {traced.moved!r} and then computes a gradient with the new value (as several updates of a "
            "critic in one step do, sharpness-aware minimisation, or a layer that sets its own weights in call). Asynchronous "
            "workers compute all gradients of a step from the parameters that they pulled. Run this script with --mode sync, "
            "with --update averaging (each worker then trains weights of its own), or make each update a step of its own."
        )
