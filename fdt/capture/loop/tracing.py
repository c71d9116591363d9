"""Traces a step of the script's own: a tf.function with a GradientTape."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

from fdt.capture.loop.arguments import Form
from fdt.capture.loop.division import Division, Over
from fdt.capture.patch import Patches
from fdt.capture.step.aggregates import aggregate
from fdt.capture.step.draws import replayed
from fdt.capture.step.inlining import in_graph
from fdt.capture.step.reductions import Reduced, reduction
from fdt.capture.step.shares import times
from fdt.capture.step.traced_step import Known, TracedStep
from fdt.capture.step.tracing import StepTrace
from fdt.capture.step.trial import Put, Trial
from fdt.capture.step.trial_holes import RunningSum, TrialHoles
from fdt.capture.step.variables import as_tensor
from fdt.capture.step.writes import Writes
from fdt.holes import Holes, OpenHole, current_holes
from fdt.messages import program_pb2


class LoopTrace(StepTrace):
    """One trace of a step of the script's own; see `StepTrace`."""

    def __init__(self, divides: bool = False, division: Division | None = None, sums_metrics: bool = True):
        """Starts.

        Args:
            divides: Whether several workers share a batch.
            division: How they do, once that has been tried.
            sums_metrics: Whether the metrics of several workers are added up.
        """
        super().__init__(divides=divides, tried=True, sums_metrics=sums_metrics)
        self._division = division
        # Each with what was added to it in a trial.
        self._added: list[tuple[tf.Variable, RunningSum | None]] = []
        # Outputs that are those of the whole batch, by id.
        self._whole: dict[int, tf.Tensor] = {}

    def step(self, function: Any, form: Form) -> TracedStep:
        """Traces a function for arguments of a form."""

        def call(arguments: Any) -> list[Any]:
            args, kwargs = arguments
            outputs = self._outputs(function, form, args, kwargs)
            return [self._put_together(number, output) for number, output in enumerate(outputs)]

        with replayed():
            traced = self.trace(call, form)  # type: ignore[arg-type]
        for output in traced.program.outputs:
            output.whole = True
        return traced

    def trial(self, function: Any, form: Form, frozen: bool = True) -> "Trial":
        """Traces a function so that it can be tried here; see `trial_of`."""

        def call(arguments: Any) -> list[Any]:
            args, kwargs = arguments
            outputs = self._outputs(function, form, args, kwargs)
            # What is computed for the whole batch is the same for all workers.
            return [output if tf.is_tensor(output) and id(output) not in self._whole else None for output in outputs]

        with replayed():
            return self.trial_of(call, form, frozen)  # type: ignore[arg-type]

    def _kept(self, graph: Any, holes: Sequence[OpenHole]) -> list[tuple[tf.Variable, str, Put]]:
        # What is added to is put together as is found by comparing the additions.
        added = {id(variable) for variable, _ in self._added}
        return [kept for kept in super()._kept(graph, holes) if id(kept[0]) not in added]

    def _summed_additions(self) -> list[RunningSum]:
        return [total for _, total in self._added if total is not None]

    def _outputs(self, function: Any, form: Form, args: Any, kwargs: Any) -> list[Any]:
        outputs = [_known(output, form) for output in flat_outputs(in_graph(function)(*args, **kwargs))]
        return [self._of_whole(output) for output in outputs]

    def _of_whole(self, output: Any) -> Any:
        """Returns what the whole batch gives in the place of an output that workers cannot put together from their parts."""
        if not self.losses.divides or not isinstance(output, tf.Tensor) or id(output) in self._results:
            return output
        reader, holes = self.losses.reader(), current_holes()
        if holes is None or not reader.is_of(output):
            return output
        known = reduction(output, reader).kind not in (Reduced.UNKNOWN, Reduced.MIXED, Reduced.RATIO)
        found = None if known and not reader.mixes(output) else aggregate(output, reader)
        if found is None:
            return output
        number = found.whole(holes).number
        self._whole[id(number)] = number
        return number

    def _describe(self, logs: Any) -> Any:
        return [super(LoopTrace, self)._describe(output) for output in logs]

    def _returned(self, leaf: Any) -> Any:
        """Leaves it: how it is divided is tried."""
        return as_tensor(leaf)

    def _check_outputs(self, outputs: Sequence[tf.Tensor]) -> None:
        """Lets them have any size: the script gets them step by step."""

    def _forget(self) -> None:
        super()._forget()
        self._added.clear()
        self._whole.clear()

    def _patches(self) -> Patches:
        patches = super()._patches()
        patches.wrap_inherited(ResourceVariable, "assign_add", self._assign_add)
        return patches

    def _assign_add(self, original: Callable[..., Any], variable: Any, delta: Any, *args: Any, **kwargs: Any) -> Any:
        holes = current_holes()
        if holes is None or not self.is_outside_optimizers or self.losses.is_in_metric:
            return original(variable, delta, *args, **kwargs)
        delta = tf.convert_to_tensor(delta, variable.dtype)
        number = len(self._added)
        self._added.append((variable, RunningSum(delta) if isinstance(holes, TrialHoles) else None))
        if self._division is not None and self._division.additions[number] is Over.MEAN and delta.dtype.is_floating:
            delta = delta * tf.cast(holes.share, delta.dtype)
        return original(variable, delta, *args, **kwargs)

    def _put_together(self, number: int, output: Any) -> Any:
        holes = current_holes()
        if self._division is None or holes is None or not tf.is_tensor(output) or id(output) in self._results:
            return output
        over = self._division.outputs[number]
        if over is Over.SUM:
            return holes.sum(output)
        if over is Over.MEAN:
            return holes.sum(output * tf.cast(holes.share, output.dtype))
        return holes.rows(output)[0] if over is Over.ROWS else output

    def _make_holes(self, share: tf.Tensor) -> Holes:
        if self._division is None:
            return Holes(share)
        return _DividedHoles(share, [over is Over.SUM for over in self._division.gradients])

    def _role(self, variable: tf.Variable, writes: Writes) -> "program_pb2.Role":
        places = [i for i, (added, _) in enumerate(self._added) if added is variable]
        if places and self._division is not None and all(self._division.additions[i] is Over.SAME for i in places):
            # Every worker adds the same: a count of steps inside a loop of the graph.
            return program_pb2.ROLE_OPTIMIZER
        if places and writes.follow_inputs and not writes.follow_holes:
            return program_pb2.ROLE_METRIC
        return super()._role(variable, writes)


class _DividedHoles(Holes):
    """Of a step whose gradients may be sums over rows, which the share must not weigh."""

    def __init__(self, share: tf.Tensor, sums: Sequence[bool]):
        super().__init__(share)
        self._sums = iter(sums)

    def gradients(self, gradients: Sequence[Any], variables: Sequence[tf.Variable]) -> list[Any]:
        if next(self._sums):
            gradients = [_divided(g, tf.where(self.share > 0, self.share, 1.0)) for g in gradients]
        return super().gradients(gradients, variables)


def _known(output: tf.Tensor, form: Form) -> Any:
    """Returns a Known for an output that is the same in every step; it may hold the rows of one worker if they are fixed."""
    value = tf.get_static_value(output)
    return output if value is None or (form.rows is not None and output.dtype != tf.string) else Known(value)


def flat_outputs(result: Any) -> list[Any]:
    """Returns what a step returned as TensorFlow gives it back: a flat list of tensors."""
    leaves = tf.nest.flatten(result, expand_composites=True)
    return [tf.convert_to_tensor(leaf) for leaf in leaves if leaf is not None and not isinstance(leaf, tf.Operation)]


def _divided(gradient: Any, divisor: tf.Tensor) -> Any:
    return times(gradient, 1.0 / divisor)
