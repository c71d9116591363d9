"""Observes what a training step calls while it is traced: gradients, optimizers, metrics, random numbers."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function import polymorphic_function
from tensorflow.python.ops import gradients_util
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable
from tensorflow.python.pywrap_tfe import TFE_Py_TapeSetIsEmpty as tape_set_is_empty

from fdt.base.config import RunConfig
from fdt.base.patch import Patches
from fdt.base.relaxation import BATCH_NORM, OWN_ROWS, relaxed
from fdt.capture.step.inlining import inlined
from fdt.capture.step.random_states import keep_in_variables
from fdt.capture.step.traced_step import MetricResult
from fdt.capture.step.variables import as_tensor, tf_variable, tf_variables
from fdt.program.holes import current_holes, pass_hole


@dataclasses.dataclass(frozen=True)
class OptimizerParts:
    """What a trace knows of an optimizer that a step uses.

    Attributes:
        trained: The variables that it updates.
        variables: The optimizer's own variables.
        iterations: Counts its updates.
        momenta: For a momentum method, from the id of a velocity to its momentum.
    """

    trained: Sequence[tf.Variable]
    variables: Sequence[tf.Variable]
    iterations: tf.Variable
    momenta: Mapping[int, float]


class StepObserver:
    """Hooks what a step calls; opens a hole where gradients come to an optimizer.

    `keras_2_step.py` and `keras_3_step.py` report calls of Keras to it.

    Attributes:
        own_step: Whether the step is Keras's own train_step.
        optimizers: In the order in which they updated variables.
        seeds: Variables that random numbers were drawn from, once for each draw.
        random_states: Those of them that this trace has made, not the script.
        normalisations: BatchNormalization layers, by name.
        added: Ids of variables that the step's own code has added to.
    """

    def __init__(
        self,
        config: RunConfig,
        hook: Callable[[Patches, "StepObserver"], None],
        metrics: Iterable[Any] = (),
        scale_learning_rate: Callable[[tf.Tensor], tf.Tensor] | None = None,
        own_step: bool = False,
    ):
        """
        Args:
            config: The run's configuration.
            hook: Hooks the functions of Keras that the step may call, so that they report to this observer.
            metrics: Metrics known beforehand; others are noticed when the step asks for their result.
            scale_learning_rate: From the optimizer's iterations to a factor of its learning rate; None for 1.
            own_step: Whether the step is Keras's own train_step.
        """
        self.own_step = own_step
        self._config = config
        self._hook = hook
        self._scale_learning_rate = scale_learning_rate
        self._metrics: dict[int, Any] = {id(m): m for m in metrics}
        # Tensors that a metric's result() returned, by identity: kept alive so that an id stays unique.
        self._results: dict[int, tuple[Any, Any]] = {}
        self._depth = 0
        self.forget()

    def forget(self) -> None:
        """Discards the records of a trace that does not count; keeps its metrics, which are made only once."""
        self.optimizers: list[OptimizerParts] = []
        self.seeds: list[tf.Variable] = []
        self.random_states: list[tf.Variable] = []
        self.normalisations: dict[str, Any] = {}
        self.added: set[int] = set()
        # Variables whose gradients have passed a hole already, and those that the step's own code has written.
        self._exchanged: set[int] = set()
        # From the id of a loss that an optimizer has scaled to the loss and its scale.
        self._scaled: dict[int, tuple[tf.Tensor, Any]] = {}

    def install(self, patches: Patches) -> None:
        """Puts the hooks in place."""
        patches.wrap(polymorphic_function.Function, "__call__", inlined)
        patches.wrap(tf.GradientTape, "gradient", self._gradient)
        patches.wrap(gradients_util, "_GradientsHelper", self._differentiate)
        # Variables that a tf.function makes are of another class than those made outside.
        for name in ("assign", "assign_sub"):
            patches.wrap_all(BaseResourceVariable, name, self._assigned)
        patches.wrap_all(BaseResourceVariable, "assign_add", self._added_to)
        keep_in_variables(patches, self._keeps)
        self._hook(patches, self)

    def metric_variables(self) -> dict[int, Any]:
        """Returns the metric that owns each metric variable, by the variable's id."""
        return {id(v): metric for metric in self._metrics.values() for v in tf_variables(metric.variables)}

    def described(self, logs: Any) -> Any:
        """Replaces metrics' results by the metrics: their states are summed over workers, their results are not."""
        return tf.nest.map_structure(
            lambda leaf: MetricResult(self._results[id(leaf)][1]) if id(leaf) in self._results else as_tensor(leaf),
            logs,
        )

    def results(self, graph: Any) -> list[tuple[tf.Tensor, Any]]:
        """Returns the metrics' results in a graph, with the metrics."""
        return [
            (tensor, metric) for tensor, metric in self._results.values() if getattr(tensor, "graph", None) is graph
        ]

    @property
    def scales_loss(self) -> bool:
        """Whether an optimizer has scaled a loss."""
        return bool(self._scaled)

    @property
    def is_outside_optimizers(self) -> bool:
        """Whether a step is being traced, and no optimizer is at work."""
        return current_holes() is not None and self._depth == 0

    @contextlib.contextmanager
    def in_optimizer(self) -> Iterator[None]:
        """Marks that an optimizer is at work."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def exchange(self, gradients: list[Any], variables: Sequence[Any], scale: Any = None) -> list[Any]:
        """Returns the gradients for an optimizer after their exchange; some may be None.

        Args:
            gradients: Gradients of a loss.
            variables: The variables by which they were computed.
            scale: Factor by which the loss was multiplied before; None if it was not.
        """
        variables = tf_variables(variables)
        if self._exchanged.issuperset(map(id, variables)):
            return gradients
        return self._pass_hole(gradients, variables, scale)

    def scales(self, loss: tf.Tensor, scale: Any) -> tf.Tensor:
        """Records a loss that an optimizer has scaled, and returns it."""
        if scale is not None and current_holes() is not None and tf.is_tensor(loss):
            self._scaled[id(loss)] = loss, scale
        return loss

    def applied(self, parts: OptimizerParts) -> None:
        """Records an optimizer that has updated variables."""
        self.optimizers.append(parts)
        graph = tf.compat.v1.get_default_graph()
        for variable in parts.variables:
            # A graph does not yet know a variable of which an operation was given the handle only.
            graph.watch_variable(variable)

    def learning_rate(self, rate: Any, iterations: Callable[[], tf.Variable]) -> Any:
        """Returns the learning rate that an optimizer at work is to use.

        Args:
            rate: The rate that it would use.
            iterations: Returns its count of updates.
        """
        holes = current_holes()
        if holes is None or not self._depth:
            return rate
        if self._scale_learning_rate is not None:
            rate = tf.convert_to_tensor(rate) * self._scale_learning_rate(iterations())
        return holes.rate(rate)

    def normalises(self, call: Callable[..., Any], layer: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls a BatchNormalization layer, in a function of its own if workers may normalise by their own rows."""
        self.normalisations[layer.name] = layer
        if not self._names_own_rows or not tf.is_tensor(inputs):
            return call(layer, inputs, *args, **kwargs)

        def fdt_own_rows(rows: tf.Tensor) -> Any:
            return call(layer, rows, *args, **kwargs)

        fdt_own_rows.__name__ = OWN_ROWS
        function = tf.function(fdt_own_rows, autograph=False)
        return function.get_concrete_function(tf.TensorSpec(inputs.shape, inputs.dtype))(inputs)

    def updates(self, metric: Any) -> None:
        """Records a metric that updates its state."""
        if current_holes() is not None:
            self._metrics[id(metric)] = metric

    def gives_result(self, metric: Any, result: Any) -> None:
        """Records a metric's result."""
        if self.is_outside_optimizers:
            self._metrics[id(metric)] = metric
            if tf.is_tensor(result):
                self._results[id(result)] = (result, metric)

    def draws(self, seed: tf.Variable) -> None:
        """Records random numbers that are drawn from a seed."""
        if current_holes() is not None:
            self.seeds.append(seed)

    def _keeps(self, state: tf.Variable) -> None:
        self.draws(state)
        self.random_states.append(state)
        tf.compat.v1.get_default_graph().watch_variable(state)

    def _assigned(self, original: Callable[..., Any], variable: Any, *args: Any, **kwargs: Any) -> Any:
        if current_holes() is not None:
            # The graph does not know a variable that is written and never read: it sees the handle only.
            tf.compat.v1.get_default_graph().watch_variable(variable)
        return original(variable, *args, **kwargs)

    def _added_to(self, original: Callable[..., Any], variable: Any, *args: Any, **kwargs: Any) -> Any:
        if self.is_outside_optimizers:
            self.added.add(id(variable))
        return self._assigned(original, variable, *args, **kwargs)

    def _gradient(
        self, original: Callable[..., Any], tape: tf.GradientTape, target: Any, sources: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Exchanges gradients where the script's own step computes them; its next operations use the sum over all workers.

        Gradients that another tape differentiates are not exchanged: they are not the step's.
        """
        return self._passed(original(tape, target, sources, *args, **kwargs), target, sources)

    def _differentiate(self, original: Callable[..., Any], ys: Any, xs: Any, *args: Any, **kwargs: Any) -> Any:
        """Exchanges the gradients of `tf.gradients` in the same way."""
        return self._passed(original(ys, xs, *args, **kwargs), ys, xs)

    def _passed(self, result: Any, target: Any, sources: Any) -> Any:
        """Returns gradients, those of variables after passing a hole."""
        if not self.is_outside_optimizers or self.own_step or not tape_set_is_empty():
            return result
        flat = tf.nest.flatten(result)
        variables = [tf_variable(source) for source in tf.nest.flatten(sources)]
        chosen = [i for i, variable in enumerate(variables) if variable is not None and flat[i] is not None]
        if not chosen:
            return result
        gradients = [flat[i] for i in chosen]
        _, scale = self._scaled.get(id(target), (target, None))
        exchanged = self._pass_hole(gradients, [variables[i] for i in chosen], scale)
        for i, gradient in zip(chosen, exchanged, strict=True):
            flat[i] = gradient
        # Variables without a gradient have none on any worker.
        self._exchanged |= {id(variable) for variable in variables if variable is not None}
        return tf.nest.pack_sequence_as(result, flat)

    def _pass_hole(self, gradients: list[Any], variables: Sequence[Any], scale: Any) -> list[Any]:
        # All workers of a synchronous step have the same scale. A server may have another one by the time a worker pushes, and
        # its own state, made of gradients, would be of the wrong size whenever the scale changes.
        if scale is None or self._config.mode == "sync":
            return pass_hole(gradients, variables)
        scale = tf.convert_to_tensor(scale)
        sent = pass_hole([_times(gradient, 1 / scale) for gradient in gradients], variables)
        return [_times(gradient, scale) for gradient in sent]

    @property
    def _names_own_rows(self) -> bool:
        """Whether the names of these functions are needed: for --relax, or for `fdt check`, which says what it would save."""
        config = self._config
        divides = config.mode == "sync" and config.num_workers > 1 and current_holes() is not None
        return divides and (config.only_looks or BATCH_NORM in relaxed(config.options))


def _times(gradient: Any, scale: tf.Tensor) -> Any:
    # A float16 gradient may be 0 without its scale.
    if gradient is None or gradient.dtype == tf.float16:
        return gradient
    scale = tf.cast(scale, gradient.dtype)
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * scale, gradient.indices, gradient.dense_shape)
    return gradient * scale
