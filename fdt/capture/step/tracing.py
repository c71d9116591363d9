"""Traces a training step into a program: what it calls opens holes, or is taken note of; what it computes is left as it is.

Who tells of these calls are `keras_2_step.py` and `keras_3_step.py`.
"""

import collections
import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager.polymorphic_function import polymorphic_function
from tensorflow.python.ops import gradients_util
from tensorflow.python.ops.resource_variable_ops import ResourceVariable
from tensorflow.python.pywrap_tfe import TFE_Py_TapeSetIsEmpty as tape_set_is_empty

from fdt.capture.keras.version import imported_versions
from fdt.capture.step.inlining import inlined
from fdt.capture.step.metrics import check_additive
from fdt.capture.step.roles import tell_apart
from fdt.capture.step.traced_step import MetricResult, TracedStep
from fdt.capture.step.variables import as_tensor, tf_variable, tf_variables
from fdt.capture.step.writes import Writes, is_random, stands_on_no, updated_between, written
from fdt.config import RunConfig
from fdt.element import Element
from fdt.errors import UnsupportedError
from fdt.holes import Holes, OpenHole, current_holes, open_holes, pass_hole
from fdt.messages import program_pb2
from fdt.patch import Patches
from fdt.program import export
from fdt.relaxation import BATCH_NORM, OWN_ROWS, relaxed


@dataclasses.dataclass(frozen=True)
class OptimizerParts:
    """What a trace is told of an optimizer that a step uses.

    Attributes:
        trained: The variables that it updates.
        variables: Its own.
        iterations: Counts its updates.
        momenta: From id of a velocity to its momentum, of a momentum method.
    """

    trained: Sequence[tf.Variable]
    variables: Sequence[tf.Variable]
    iterations: tf.Variable
    momenta: Mapping[int, float]


class StepTrace:
    """One trace of one model's step, and what it was seen to touch.

    Attributes:
        own_step: Whether the step is Keras's own train_step.
    """

    def __init__(
        self,
        config: RunConfig,
        metrics: Iterable[Any] = (),
        scale_learning_rate: Callable[[tf.Tensor], tf.Tensor] | None = None,
        own_step: bool = False,
    ):
        """Starts without having seen anything.

        Args:
            config: The run's configuration.
            metrics: Those that are known beforehand; others are noticed when the step asks for their result.
            scale_learning_rate: From the optimizer's iterations to a factor of its learning rate; None for 1.
            own_step: Whether the step is Keras's own train_step.
        """
        self.own_step = own_step
        self._config = config
        self._scale_learning_rate = scale_learning_rate
        self._optimizers: list[OptimizerParts] = []
        self._metrics: dict[int, Any] = {id(m): m for m in metrics}
        self._seeds: list[tf.Variable] = []
        # Tensors that a metric's result() returned, by identity: kept alive so that an id stays unique.
        self._results: dict[int, tuple[Any, Any]] = {}
        self._depth = 0
        # Variables whose gradients have passed a hole already.
        self._exchanged: set[int] = set()
        self._normalisations: dict[str, Any] = {}
        # Variables that the step has written by itself, and one of them by which it has computed a gradient afterwards.
        self._assigned_by_hand: set[int] = set()
        self._moved: str | None = None

    def trace(self, train_step: Callable[[Any], Any], element: Element) -> "TracedStep":
        """Traces `train_step(batch)`.

        Args:
            train_step: Bound method, or a function of one argument.
            element: What a batch looks like.
        """
        concrete, opened, logs = self._traced(train_step, element)
        if not any(hole.kind == program_pb2.Hole.KIND_GRADIENTS for hole in opened):
            raise UnsupportedError(
                "The training step never hands gradients to a Keras optimizer (optimizer.apply or apply_gradients), so there "
                "is nothing to exchange between workers. Update the weights through a keras.optimizers optimizer."
            )
        metric_variables = self._metric_variables()
        if self._config.mode == "async" and self._config.num_workers > 1:
            # Workers have metrics each, whose states are added up.
            check_additive(concrete.graph, metric_variables)
        self._check_outputs(concrete.outputs)
        describe = self._describing(concrete.graph, opened, metric_variables)
        program, variables = export(concrete, opened, describe)
        advances = self._advances(concrete.graph, len(element.specs()))
        printing = any(operation.type == "PrintV2" for operation in concrete.graph.get_operations())
        graph, layers = concrete.graph, self._normalisations.values()
        changed, draws = written(graph, variables), is_random(graph)
        if self._config.mode == "async" and self._moved is None and len(opened) > 1:
            handle = updated_between(graph, {h.function: {id(v.handle) for v in h.variables} for h in opened})
            moved = next((v for v in variables if v.handle is handle), None)
            self._moved = None if moved is None else moved.name.removesuffix(":0")
        return TracedStep(program, variables, logs, advances, changed, graph, layers, draws, printing, self._moved)

    def _traced(self, train_step: Callable[[Any], Any], element: Element) -> tuple[Any, list[OpenHole], Any]:
        """Returns the concrete function step(share, *batch), its open holes, and what the step returned."""
        opened: list[OpenHole] = []
        logs: list[Any] = []

        def step(share: tf.Tensor, *batch: tf.Tensor) -> list[tf.Tensor]:
            # A first trace that makes variables is followed by a second one, which counts.
            opened.clear()
            logs.clear()
            self._forget()
            data = element.decode(batch)
            with open_holes(Holes(share)) as holes:
                logs.append(self._describe(train_step(data)))
            opened.extend(holes.opened)
            return [leaf for leaf in tf.nest.flatten(logs[-1]) if tf.is_tensor(leaf)]

        patches = self._patches()
        try:
            function = tf.function(step, autograph=False)
            concrete = function.get_concrete_function(tf.TensorSpec([], tf.float32, name="share"), *element.specs())
        finally:
            patches.undo()
        return concrete, opened, logs[-1]

    @property
    def _names_own_rows(self) -> bool:
        """Whether anybody will look at these names; `fdt check` tells what would be saved."""
        config = self._config
        divides = config.mode == "sync" and config.num_workers > 1 and current_holes() is not None
        return divides and (config.only_looks or BATCH_NORM in relaxed(config.options))

    def _forget(self) -> None:
        self._seeds.clear()
        self._optimizers.clear()
        self._exchanged.clear()
        self._normalisations.clear()
        self._assigned_by_hand.clear()
        self._moved = None

    def _check_outputs(self, outputs: Sequence[tf.Tensor]) -> None:
        for output in outputs:
            if not output.shape.is_fully_defined():
                raise UnsupportedError(
                    f"train_step returns a tensor of shape {output.shape}, which depends on the size of the batch. Expected: "
                    "a dict of scalars (see keras.Model.train_step). Return reduced values."
                )

    def _advances(self, graph: Any, num_inputs: int) -> list[tuple[tf.Variable, Any]]:
        """Returns what counts on even in a step that finds no more data, and by how much.

        In plain Keras the step that is to fetch the next batch fails when there is none; what stands on no data has been
        done by then: iterations, and the draws of random layers.
        """
        counts = collections.Counter(id(seed) for seed in self._seeds)
        seeds = {id(seed): seed for seed in self._seeds}.values()
        candidates: list[tuple[tf.Variable, Any]] = [(seed, np.array([0, counts[id(seed)]])) for seed in seeds]
        # Not `iterations`, which with accumulated gradients counts updates.
        candidates += [(v, 1) for v in {id(o.iterations): o.iterations for o in self._optimizers}.values()]
        inputs = {t.op.name for t in graph.inputs[: 1 + num_inputs]}
        return [(variable, step) for variable, step in candidates if stands_on_no(inputs, graph, variable)]

    def _metric_variables(self) -> dict[int, Any]:
        return {id(v): metric for metric in self._metrics.values() for v in tf_variables(metric.variables)}

    def _describe(self, logs: Any) -> Any:
        """Replaces what a metric computed by the metric: its state is summed over workers, its result is not."""
        return tf.nest.map_structure(
            lambda leaf: MetricResult(self._results[id(leaf)][1]) if id(leaf) in self._results else as_tensor(leaf),
            logs,
        )

    def _describing(
        self, graph: Any, holes: Sequence[OpenHole], metrics: dict[int, Any]
    ) -> Callable[[tf.Variable], program_pb2.Variable]:
        """Returns what tells a variable's role, and the momentum of a velocity."""
        trained = {id(v) for optimizer in self._optimizers for v in optimizer.trained}
        trained |= {id(v) for hole in holes for v in hole.variables}
        of_optimizer = {id(v) for optimizer in self._optimizers for v in optimizer.variables}
        seeds = {id(v) for v in self._seeds}
        momenta = {v: momentum for optimizer in self._optimizers for v, momentum in optimizer.momenta.items()}
        functions = {hole.function for hole in holes}

        roles: dict[int, Any] = {}
        writes: dict[int, Writes] = {}
        for variable in graph.variables:
            handle = id(variable.handle)
            if id(variable) in trained:
                roles[handle] = program_pb2.ROLE_TRAINABLE
            elif id(variable) in of_optimizer:
                roles[handle] = program_pb2.ROLE_OPTIMIZER
            elif id(variable) in metrics:
                roles[handle] = program_pb2.ROLE_METRIC
            elif id(variable) in seeds:
                roles[handle] = program_pb2.ROLE_SEED
            else:
                writes[handle] = Writes(graph, variable, functions)
                roles[handle] = self._role(variable, writes[handle])
        tell_apart(roles, writes)

        def describe(variable: tf.Variable) -> program_pb2.Variable:
            return program_pb2.Variable(role=roles[id(variable.handle)], momentum=momenta.get(id(variable), 0.0))

        return describe

    def _role(self, variable: tf.Variable, writes: Writes) -> "program_pb2.Role":
        """Tells what a variable is that is no optimizer's or metric's.

        What follows gradients, or nothing but itself (a count of steps), is equal for all workers, as an optimizer's state is.
        """
        if not writes:
            return program_pb2.ROLE_CONSTANT
        if writes.are_random_states:
            return program_pb2.ROLE_SEED
        if writes.follow_holes or not writes.follow_inputs:
            return program_pb2.ROLE_OPTIMIZER
        return program_pb2.ROLE_OTHER

    def _patches(self) -> Patches:
        patches = Patches()
        patches.wrap(polymorphic_function.Function, "__call__", inlined)
        patches.wrap(tf.GradientTape, "gradient", self._gradient)
        patches.wrap(gradients_util, "_GradientsHelper", self._differentiate)
        for name in ("assign", "assign_add", "assign_sub"):
            patches.wrap_inherited(ResourceVariable, name, self._assigned)
        for version in imported_versions():
            version.hook_step(patches, self)
        return patches

    def _assigned(self, original: Callable[..., Any], variable: Any, *args: Any, **kwargs: Any) -> Any:
        if current_holes() is not None:
            # One that is written and never read the graph does not know: it sees its handle only.
            tf.compat.v1.get_default_graph().watch_variable(variable)
        if self.is_outside_optimizers:
            self._assigned_by_hand.add(id(variable))
        return original(variable, *args, **kwargs)

    def _gradient(
        self, original: Callable[..., Any], tape: tf.GradientTape, target: Any, sources: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Exchanges gradients where the script's own step gets them, so that what it does to them it does to everybody's.

        Not those that another tape goes on to differentiate: they are no gradients of the step.
        """
        return self._passed(original(tape, target, sources, *args, **kwargs), sources)

    def _differentiate(self, original: Callable[..., Any], ys: Any, xs: Any, *args: Any, **kwargs: Any) -> Any:
        """The same for `tf.gradients`."""
        return self._passed(original(ys, xs, *args, **kwargs), xs)

    def _passed(self, result: Any, sources: Any) -> Any:
        """Returns gradients as they come out of a hole, those of variables."""
        if not self.is_outside_optimizers or self.own_step or not tape_set_is_empty():
            return result
        flat = tf.nest.flatten(result)
        variables = [tf_variable(source) for source in tf.nest.flatten(sources)]
        chosen = [i for i, variable in enumerate(variables) if variable is not None and flat[i] is not None]
        if not chosen:
            return result
        gradients = [flat[i] for i in chosen]
        for variable in variables:
            if self._moved is None and variable is not None and id(variable) in self._assigned_by_hand:
                self._moved = variable.name.removesuffix(":0")
        exchanged = pass_hole(gradients, [variables[i] for i in chosen])
        for i, gradient in zip(chosen, exchanged, strict=True):
            flat[i] = gradient
        # Those without a gradient have none on any worker.
        self._exchanged |= {id(variable) for variable in variables if variable is not None}
        return tf.nest.pack_sequence_as(result, flat)

    # ---- what a step is seen to call ----------------------------------------------------------------------------------

    @property
    def is_outside_optimizers(self) -> bool:
        """Whether a step is being traced, and no optimizer is at work."""
        return current_holes() is not None and self._depth == 0

    @contextlib.contextmanager
    def in_optimizer(self) -> Iterator[None]:
        """Within it, an optimizer is at work."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def exchange(self, gradients: list[Any], variables: Sequence[Any]) -> list[Any]:
        """Returns what an optimizer is to be given in the place of gradients; some may be None."""
        variables = tf_variables(variables)
        if self._exchanged.issuperset(map(id, variables)):
            return gradients
        return pass_hole(gradients, variables)

    def applied(self, parts: OptimizerParts) -> None:
        """Takes note of an optimizer that has updated variables."""
        self._optimizers.append(parts)
        graph = tf.compat.v1.get_default_graph()
        for variable in parts.variables:
            # One that is only handed to an operation, by its handle, is not yet known as a variable.
            graph.watch_variable(variable)

    def learning_rate(self, rate: Any, iterations: Callable[[], tf.Variable]) -> Any:
        """Returns what an optimizer at work is to take for its learning rate.

        Args:
            rate: What it would take.
            iterations: Returns its count of updates.
        """
        holes = current_holes()
        if holes is None or not self._depth:
            return rate
        if self._scale_learning_rate is not None:
            rate = tf.convert_to_tensor(rate) * self._scale_learning_rate(iterations())
        return holes.rate(rate)

    def normalises(self, call: Callable[..., Any], layer: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls a BatchNormalization layer, in a function of its own where workers may take their own rows for the batch."""
        self._normalisations[layer.name] = layer
        if not self._names_own_rows or not tf.is_tensor(inputs):
            return call(layer, inputs, *args, **kwargs)

        def fdt_own_rows(rows: tf.Tensor) -> Any:
            return call(layer, rows, *args, **kwargs)

        fdt_own_rows.__name__ = OWN_ROWS
        function = tf.function(fdt_own_rows, autograph=False)
        return function.get_concrete_function(tf.TensorSpec(inputs.shape, inputs.dtype))(inputs)

    def updates(self, metric: Any) -> None:
        """Takes note of a metric that updates its state."""
        if current_holes() is not None:
            self._metrics[id(metric)] = metric

    def gives_result(self, metric: Any, result: Any) -> None:
        """Takes note of a metric's result."""
        if self.is_outside_optimizers:
            self._metrics[id(metric)] = metric
            if tf.is_tensor(result):
                self._results[id(result)] = (result, metric)

    def draws(self, seed: tf.Variable) -> None:
        """Takes note of random numbers that are drawn from a seed."""
        if current_holes() is not None:
            self._seeds.append(seed)
