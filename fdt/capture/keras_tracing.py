"""Traces a Keras model's own `train_step` into a program: which calls of Keras open a hole, and what is exact why.

A worker computes on its part of the batch, `share` = n_r / n of it. Gradients are added up with these shares as weights,
so everything that enters the loss must be such that the sum over workers of share * loss_r is the loss of one machine:

- a mean over samples is, as it stands; so are regularisation losses, because the shares add up to one;
- a sum over samples is divided by the share;
- a mean over something else (valid entries of a mask, sample weights) is divided by what it should have been divided by,
  the sum over all workers, for which a second kind of hole is opened;
- a scalar that a Mean or Sum metric is told once per batch counts by its share.
"""

import collections
import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
from keras.src.losses import loss as keras_loss
from keras.src.metrics import reduction_metrics
from keras.src.metrics.metric import Metric
from keras.src.models.functional import Functional
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer
from keras.src.random.seed_generator import SeedGenerator
from keras.src.trainers.compile_utils import CompileMetrics
from tensorflow.python.autograph.core.ag_ctx import ControlStatusCtx, Status
from tensorflow.python.autograph.core.converter import ConversionOptions
from tensorflow.python.autograph.impl.api import do_not_convert
from tensorflow.python.eager.polymorphic_function import autograph_util, polymorphic_function
from tensorflow.python.pywrap_tfe import TFE_Py_TapeSetIsEmpty as tape_set_is_empty

from fdt.capture.metrics import check_additive
from fdt.capture.patch import Patches
from fdt.element import Element
from fdt.errors import UnsupportedError
from fdt.holes import Holes, OpenHole, current_holes, open_holes
from fdt.messages import program_pb2
from fdt.program import export, unpack

_READERS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "VarIsInitializedOp")
_MEANS = ("mean", "sum_over_batch_size")


class StepTrace:
    """One trace of one model's step, and what it was seen to touch."""

    def __init__(
        self, metrics: Iterable[Metric] = (), scale_learning_rate: Callable[[tf.Tensor], tf.Tensor] | None = None
    ):
        """Starts without having seen anything.

        Args:
            metrics: Those that are known beforehand; others are noticed when the step asks for their result.
            scale_learning_rate: From the optimizer's iterations to a factor of its learning rate; None for 1.
        """
        self._scale_learning_rate = scale_learning_rate
        self._optimizers: list[BaseOptimizer] = []
        self._metrics: dict[int, Metric] = {id(m): m for m in metrics}
        self._seeds: list[tf.Variable] = []
        # Tensors that a metric's result() returned, by identity: kept alive so that an id stays unique.
        self._results: dict[int, tuple[Any, Metric]] = {}
        self._depth = 0
        self._keras_step = False
        # Variables whose gradients have passed a hole already.
        self._exchanged: set[int] = set()
        self._normalisations: dict[str, Any] = {}

    def trace(self, train_step: Callable[[Any], Any], element: Element) -> "TracedStep":
        """Traces `train_step(batch)`.

        Args:
            train_step: Bound method, or a function of one argument.
            element: What a batch looks like.
        """
        concrete, opened, logs = self._traced(train_step, element, self._make_holes)
        if not any(hole.kind == program_pb2.Hole.KIND_GRADIENTS for hole in opened):
            raise UnsupportedError(
                "The training step never hands gradients to a Keras optimizer (optimizer.apply or apply_gradients), so there "
                "is nothing to exchange between workers. Update the weights through a keras.optimizers optimizer."
            )
        metric_variables = self._metric_variables()
        check_additive(concrete.graph, metric_variables)
        self._check_outputs(concrete.outputs)
        program, variables = export(concrete, opened, self._describing(concrete.graph, opened, metric_variables))
        advances = self._advances(concrete.graph, len(element.specs()))
        written, layers = _written(concrete.graph, variables), self._normalisations.values()
        return TracedStep(program, variables, logs, advances, written, layers, is_random(concrete.graph))

    def _traced(
        self, train_step: Callable[[Any], Any], element: Element, make_holes: Callable[[tf.Tensor], Holes]
    ) -> tuple[Any, list[OpenHole], Any]:
        """Returns the concrete function step(share, *batch), its open holes, and what the step returned."""
        opened: list[OpenHole] = []
        logs: list[Any] = []

        def step(share: tf.Tensor, *batch: tf.Tensor) -> list[tf.Tensor]:
            # A first trace that makes variables is followed by a second one, which counts.
            opened.clear()
            logs.clear()
            self._forget()
            data = element.decode(batch)
            with open_holes(make_holes(share)) as holes:
                logs.append(self._describe(train_step(data)))
            opened.extend(holes.opened)
            return [leaf for leaf in keras.tree.flatten(logs[-1]) if tf.is_tensor(leaf)]

        self._keras_step = getattr(train_step, "__func__", None) is TensorFlowTrainer.train_step
        patches = self._patches()
        try:
            function = tf.function(step, autograph=False)
            concrete = function.get_concrete_function(tf.TensorSpec([], tf.float32, name="share"), *element.specs())
        finally:
            patches.undo()
        return concrete, opened, logs[-1]

    def _make_holes(self, share: tf.Tensor) -> Holes:
        return Holes(share)

    def _forget(self) -> None:
        self._seeds.clear()
        self._optimizers.clear()
        self._exchanged.clear()
        self._normalisations.clear()

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
        candidates += [(o._iterations.value, 1) for o in {id(o): o for o in self._optimizers}.values()]
        inputs = {t.op.name for t in graph.inputs[: 1 + num_inputs]}
        return [(variable, step) for variable, step in candidates if _stands_on_no(inputs, graph, variable)]

    def _metric_variables(self) -> dict[int, Metric]:
        # A container of metrics shows the variables of those in it; the metric itself is the one to name.
        containers_first = sorted(self._metrics.values(), key=lambda m: not isinstance(m, CompileMetrics))
        return {id(v.value): metric for metric in containers_first for v in metric.variables}

    def _describe(self, logs: Any) -> Any:
        """Replaces what a metric computed by the metric: its state is summed over workers, its result is not."""
        return keras.tree.map_structure(
            lambda leaf: MetricResult(self._results[id(leaf)][1]) if id(leaf) in self._results else _as_tensor(leaf),
            logs,
        )

    def _describing(
        self, graph: Any, holes: Sequence[OpenHole], metrics: dict[int, Metric]
    ) -> Callable[[tf.Variable], program_pb2.Variable]:
        """Returns what tells a variable's role, and the momentum of a velocity."""
        trained = {id(v) for optimizer in self._optimizers for v in _tf_variables(optimizer._trainable_variables)}
        trained |= {id(v) for hole in holes for v in hole.variables}
        of_optimizer = {id(v) for optimizer in self._optimizers for v in _tf_variables(optimizer.variables)}
        seeds = {id(v) for v in self._seeds}
        momenta = {id(v): m for optimizer in self._optimizers for v, m in _velocities(optimizer)}
        functions = {hole.function for hole in holes}

        def describe(variable: tf.Variable) -> program_pb2.Variable:
            if id(variable) in trained:
                role = program_pb2.ROLE_TRAINABLE
            elif id(variable) in of_optimizer:
                role = program_pb2.ROLE_OPTIMIZER
            elif id(variable) in metrics:
                role = program_pb2.ROLE_METRIC
            elif id(variable) in seeds:
                role = program_pb2.ROLE_SEED
            else:
                role = self._role(variable, Writes(graph, variable, functions))
            return program_pb2.Variable(role=role, momentum=momenta.get(id(variable), 0.0))

        return describe

    def _role(self, variable: tf.Variable, writes: "Writes") -> "program_pb2.Role":
        """Tells what a variable is that is no optimizer's or metric's.

        What follows gradients, or nothing but itself (a count of steps), is equal for all workers, as an optimizer's state is.
        """
        if writes.are_random_states:
            return program_pb2.ROLE_SEED
        if writes and (writes.follow_holes or not writes.follow_inputs):
            return program_pb2.ROLE_OPTIMIZER
        return program_pb2.ROLE_OTHER

    def _patches(self) -> Patches:
        patches = Patches()
        patches.wrap(polymorphic_function.Function, "__call__", _inlined)
        patches.wrap(tf.GradientTape, "gradient", self._gradient)
        patches.wrap(keras.layers.BatchNormalization, "call", self._normalise)
        patches.wrap(BaseOptimizer, "apply", self._apply)
        patches.wrap(LossScaleOptimizer, "apply", self._apply)
        patches.wrap(BaseOptimizer, "scale_loss", self._scale_loss)
        patches.wrap(LossScaleOptimizer, "scale_loss", self._scale_loss)
        patches.wrap(BaseOptimizer, "_get_current_learning_rate", self._learning_rate)
        patches.wrap(keras_loss, "reduce_values", _reduce_values)
        patches.wrap(keras_loss, "apply_mask", _apply_mask)
        patches.wrap(reduction_metrics.Mean, "update_state", self._update_mean)
        patches.wrap(reduction_metrics.Sum, "update_state", self._update_mean)
        for metric_class in _metric_classes(Metric):
            if "result" in vars(metric_class):
                patches.wrap(metric_class, "result", self._metric_result)
            if "update_state" in vars(metric_class):
                patches.wrap(metric_class, "update_state", self._update_metric)
        patches.wrap(SeedGenerator, "next", self._next_seed)
        return patches

    def _apply(self, original: Callable[..., Any], optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
        if self._depth or current_holes() is None:
            return original(optimizer, grads, trainable_variables)
        if trainable_variables is None:
            trainable_variables = optimizer._trainable_variables
        grads, trainable_variables = list(grads), list(trainable_variables)
        exchanged = grads
        if not self._exchanged.issuperset(map(id, _tf_variables(trainable_variables))):
            exchanged = _exchange(grads, trainable_variables)
        self._depth += 1
        try:
            return original(optimizer, exchanged, trainable_variables)
        finally:
            self._depth -= 1
            self._optimizers.append(optimizer)
            if isinstance(optimizer, LossScaleOptimizer):
                self._optimizers.append(optimizer.inner_optimizer)

    def _gradient(
        self, original: Callable[..., Any], tape: tf.GradientTape, target: Any, sources: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Exchanges gradients where the script's own step gets them, so that what it does to them it does to everybody's.

        Not those that another tape goes on to differentiate: they are no gradients of the step.
        """
        result = original(tape, target, sources, *args, **kwargs)
        if current_holes() is None or self._keras_step or self._depth or not tape_set_is_empty():
            return result
        flat, variables = tf.nest.flatten(result), tf.nest.flatten(sources)
        chosen = [
            i
            for i, source in enumerate(variables)
            if isinstance(source, tf.Variable | keras.Variable) and flat[i] is not None
        ]
        if not chosen:
            return result
        exchanged = _exchange([flat[i] for i in chosen], [variables[i] for i in chosen])
        for i, gradient in zip(chosen, exchanged, strict=True):
            flat[i] = gradient
        # Those without a gradient have none on any worker.
        self._exchanged |= {
            id(v) for v in _tf_variables(v for v in variables if isinstance(v, tf.Variable | keras.Variable))
        }
        return tf.nest.pack_sequence_as(result, flat)

    def _normalise(self, original: Callable[..., Any], layer: Any, *args: Any, **kwargs: Any) -> Any:
        self._normalisations[layer.name] = layer
        return original(layer, *args, **kwargs)

    def _scale_loss(self, original: Callable[..., Any], optimizer: Any, loss: Any) -> Any:
        """Weighs the loss of Keras's own step by the share: that weighs all gradients, and costs one multiplication.

        A train_step of the script's own may look at its gradients; there they are weighed in the hole.
        """
        holes = current_holes()
        if holes is None or not self._keras_step or self._depth:
            return original(optimizer, loss)
        holes.weighted = True
        self._depth += 1
        try:
            return original(optimizer, loss * tf.cast(holes.share, loss.dtype))
        finally:
            self._depth -= 1

    def _learning_rate(self, original: Callable[..., Any], optimizer: Any) -> Any:
        rate, holes = original(optimizer), current_holes()
        if holes is None or not self._depth:
            return rate
        if self._scale_learning_rate is not None:
            rate = tf.convert_to_tensor(rate) * self._scale_learning_rate(optimizer.iterations.value)
        return holes.rate(rate)

    def _update_mean(self, original: Callable[..., Any], metric: Any, values: Any, sample_weight: Any = None) -> Any:
        holes = current_holes()
        if holes is not None:
            self._metrics[id(metric)] = metric
            values = tf.convert_to_tensor(values) if not hasattr(values, "shape") else values
            if sample_weight is None and len(values.shape) == 0:
                sample_weight = holes.share
        return original(metric, values, sample_weight=sample_weight)

    def _update_metric(self, original: Callable[..., Any], metric: Any, *args: Any, **kwargs: Any) -> Any:
        if current_holes() is not None:
            self._metrics[id(metric)] = metric
        return original(metric, *args, **kwargs)

    def _metric_result(self, original: Callable[..., Any], metric: Metric) -> Any:
        result = original(metric)
        if current_holes() is not None and self._depth == 0:
            self._metrics[id(metric)] = metric
            if tf.is_tensor(result):
                self._results[id(result)] = (result, metric)
        return result

    def _next_seed(self, original: Callable[..., Any], generator: SeedGenerator, *args: Any, **kwargs: Any) -> Any:
        if current_holes() is not None:
            self._seeds.append(generator.state.value)
        return original(generator, *args, **kwargs)


class Known:
    """A place in the step's logs that holds the same value in every step."""

    def __init__(self, value: Any):
        self.value = value


class MetricResult:
    """A place in the step's logs that holds a metric's result."""

    def __init__(self, metric: Metric):
        self.metric = metric


class TracedStep:
    """A program and what ties it to the script.

    Attributes:
        program: The StepProgram.
        variables: The script's tf.Variables, in the program's order.
        advances: Variables that plain Keras counts on, by so much, in a step that finds no more data.
        normalisations: The BatchNormalization layers that the step calls.
        is_random: Whether it draws random numbers.
    """

    def __init__(
        self,
        program: program_pb2.StepProgram,
        variables: list[tf.Variable],
        logs: Any,
        advances: list[tuple[tf.Variable, Any]],
        written: set[int],
        normalisations: Iterable[Any] = (),
        is_random: bool = False,
    ):
        self.program = program
        self.variables = variables
        self.advances = advances
        self.normalisations = tuple(normalisations)
        self.is_random = is_random or any(v.role == program_pb2.ROLE_SEED for v in program.variables)
        self._written = written
        self._logs = logs

    def trained(self) -> list[tf.Variable]:
        """Returns the variables by which gradients are computed."""
        indices = {gradient.variable for hole in self.program.holes for gradient in hole.gradients}
        return [self.variables[i] for i in sorted(indices)]

    def writes(self, variable: tf.Variable) -> bool:
        """Returns whether the step may change a variable."""
        return id(variable) in self._written

    def outputs(self) -> list[Any]:
        """Returns the leaves of what train_step returned: tensors, and metrics whose results they are."""
        leaves: list[Any] = keras.tree.flatten(self._logs)
        return leaves

    def placeholder(self) -> Any:
        """Returns the structure of what train_step returned, with zeros."""
        return keras.tree.map_structure(lambda leaf: 0.0, self._logs)

    def logs(self, outputs: bytes, num_rows: int | None = None) -> Any:
        """Returns what train_step returned.

        Args:
            outputs: The step's outputs that are no metric's results, packed. The state of the script's own metrics must
                have been assigned: their results are computed here.
            num_rows: Of the step's batch, where an output's size depends on it.
        """
        rest = iter(unpack(outputs, [_with_rows(output.tensor, num_rows) for output in self.program.outputs]))
        known: dict[int, Any] = {}

        def value(leaf: Any) -> Any:
            if isinstance(leaf, Known):
                return tf.constant(leaf.value)
            if isinstance(leaf, MetricResult):
                if id(leaf.metric) not in known:
                    known[id(leaf.metric)] = leaf.metric.result()
                return known[id(leaf.metric)]
            return tf.convert_to_tensor(next(rest)) if tf.is_tensor(leaf) else leaf

        return keras.tree.map_structure(value, self._logs)


def build_ahead(model: Any, element: Element) -> None:
    """Makes the variables of optimizer and metrics, where that can be done without tracing the step.

    Otherwise they are made by the first trace, which then only serves to make them: the step is traced twice.
    """
    own_step = getattr(model.train_step, "__func__", None) is not TensorFlowTrainer.train_step
    if own_step or not isinstance(model, Functional | keras.Sequential) or not model.built:
        return
    batch = element.symbolic(lambda spec: keras.KerasTensor(tuple(spec.shape.as_list()), spec.dtype.name))
    if batch is None:
        return
    # What Keras cannot do here it says when it traces the step, as it would without us.
    with contextlib.suppress(ValueError, RuntimeError):
        model._symbolic_build(data_batch=batch)


def _with_rows(tensor: program_pb2.Tensor, num_rows: int | None) -> program_pb2.Tensor:
    if num_rows is None or -1 not in tensor.shape:
        return tensor
    return program_pb2.Tensor(dtype=tensor.dtype, shape=[num_rows if d < 0 else d for d in tensor.shape])


def _inlined(original: Callable[..., Any], function: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls a tf.function's Python again: one that was traced before has no holes, and a hole is found at the top level."""
    if current_holes() is None:
        return original(function, *args, **kwargs)
    return in_graph(function)(*args, **kwargs)


def in_graph(function: Any) -> Callable[..., Any]:
    """Returns the Python of a tf.function, converted by AutoGraph as the function itself would."""
    if not function._autograph:
        return do_not_convert(function.python_function)
    features = function._experimental_autograph_options
    converted = autograph_util.py_func_from_autograph(function.python_function, features)

    def call(*args: Any, **kwargs: Any) -> Any:
        # Our own trace is not converted, and would pass that on.
        options = ConversionOptions(recursive=True, optional_features=features, user_requested=True)
        with ControlStatusCtx(status=Status.ENABLED, options=options):
            return converted(*args, **kwargs)

    return call


def _exchange(grads: list[Any], variables: list[Any]) -> list[Any]:
    holes = current_holes()
    assert holes is not None
    present = [i for i, gradient in enumerate(grads) if gradient is not None]
    if not present:
        return grads
    exchanged = list(grads)
    filled = holes.gradients([grads[i] for i in present], _tf_variables(variables[i] for i in present))
    for i, gradient in zip(present, filled, strict=True):
        exchanged[i] = gradient
    return exchanged


def _reduce_values(
    original: Callable[..., Any], values: Any, sample_weight: Any = None, reduction: str | None = "sum_over_batch_size"
) -> Any:
    loss = original(values, sample_weight, reduction)
    holes = current_holes()
    if holes is None or tuple(values.shape) in ((), (0,)):
        return loss
    if reduction == "sum":
        return loss / _nonzero(holes.share, loss.dtype)
    if reduction == "mean_with_sample_weight" and sample_weight is not None:
        return loss * _correction(holes, tf.reduce_sum(tf.cast(sample_weight, loss.dtype)))
    return loss


def _apply_mask(original: Callable[..., Any], sample_weight: Any, mask: Any, dtype: Any, reduction: Any) -> Any:
    weight = original(sample_weight, mask, dtype, reduction)
    holes = current_holes()
    if holes is None or mask is None or reduction not in _MEANS:
        return weight
    return weight * _correction(holes, tf.reduce_sum(tf.cast(mask, weight.dtype)))


def _written(graph: Any, variables: Sequence[tf.Variable]) -> set[int]:
    """Returns the identities of the variables of which a step does more than read them."""
    handles = {internal.name: external for external, internal in graph.captures}
    by_handle = {id(variable.handle): id(variable) for variable in variables}
    touched = (t.name for o in graph.get_operations() if o.type not in _READERS for t in o.inputs if t.name in handles)
    return {by_handle[id(handles[name])] for name in touched if id(handles[name]) in by_handle}


class Writes:
    """What a variable is overwritten with in a traced step; false if it is not."""

    def __init__(self, graph: Any, variable: tf.Variable, holes: set[str]):
        """Follows the writes back by data.

        Args:
            graph: FuncGraph of step(share, *batch).
            variable: One that it captures.
            holes: Names of the functions that mark holes.
        """
        handles = {internal.name for external, internal in graph.captures if external is variable.handle}
        users = [o for o in graph.get_operations() if any(t.name in handles for t in o.inputs)]
        waiting = [o for o in users if o.type not in _READERS]
        self._writes = bool(waiting)
        self.are_random_states = any("RngReadAndSkip" in o.type for o in users)
        inputs = {t.op.name for t in graph.inputs[: len(graph.inputs) - len(graph.captures)]}
        self.follow_holes = self.follow_inputs = False
        seen: set[str] = set()
        while waiting:
            operation = waiting.pop()
            if operation.name in seen:
                continue
            seen.add(operation.name)
            self.follow_inputs |= operation.name in inputs
            if "Call" in operation.type and operation.get_attr("f").name in holes:
                self.follow_holes = True
                continue
            # A random number is every worker's own.
            self.follow_inputs |= "Random" in operation.type
            waiting += [t.op for t in operation.inputs]

    def __bool__(self) -> bool:
        return self._writes


def _stands_on_no(inputs: set[str], graph: Any, variable: tf.Variable) -> bool:
    """Whether a variable is written, and nothing that is written stands on one of these inputs."""
    handles = {internal.name for external, internal in graph.captures if external is variable.handle}
    waiting = [
        operation
        for operation in graph.get_operations()
        if "Assign" in operation.type and operation.inputs[0].name in handles
    ]
    written, seen = bool(waiting), set()
    while waiting:
        operation = waiting.pop()
        if operation.name in inputs:
            return False
        if operation.name not in seen:
            seen.add(operation.name)
            waiting += [*(t.op for t in operation.inputs), *operation.control_inputs]
    return written


def is_random(graph: Any) -> bool:
    """Returns whether a traced step draws random numbers."""
    return any("Random" in operation.type or operation.type == "RngReadAndSkip" for operation in graph.get_operations())


def _correction(holes: Holes, divisor: tf.Tensor) -> tf.Tensor:
    """From a mean over this worker's divisor to this worker's part of the mean over everybody's."""
    divisor = tf.stop_gradient(divisor)
    return tf.math.divide_no_nan(divisor, _nonzero(holes.share, divisor.dtype) * holes.sum(divisor))


def _nonzero(share: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    # A worker without samples computes on a stand-in; its loss only has to be finite, its share takes it away.
    return tf.cast(tf.where(share > 0, share, tf.ones_like(share)), dtype)


def _as_tensor(leaf: Any) -> Any:
    if isinstance(leaf, keras.Variable):
        return tf.convert_to_tensor(leaf.value)
    return tf.convert_to_tensor(leaf) if isinstance(leaf, tf.Variable) else leaf


def _tf_variables(variables: Iterable[Any]) -> list[tf.Variable]:
    """Keras's variables wrap TensorFlow's."""
    return [v.value if isinstance(v, keras.Variable) else v for v in variables]


def _velocities(optimizer: BaseOptimizer) -> list[tuple[tf.Variable, float]]:
    """Returns the velocities of a momentum method, each with its momentum; none for any other optimizer."""
    if not isinstance(optimizer, keras.optimizers.SGD) or not optimizer.momentum:
        return []
    return [(v, float(optimizer.momentum)) for v in _tf_variables(optimizer.momentums)]


def _metric_classes(base: type) -> list[type]:
    """All subclasses that exist, the script's own included."""
    found: list[type] = []
    subclasses: list[type] = base.__subclasses__()
    for subclass in subclasses:
        found += [subclass, *_metric_classes(subclass)]
    return list(dict.fromkeys(found))
