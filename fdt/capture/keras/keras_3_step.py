"""What a training step calls of Keras 3, and what a trace is told of it."""

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras.src.losses import loss as keras_loss
from keras.src.metrics import reduction_metrics
from keras.src.metrics.metric import Metric
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer
from keras.src.random.seed_generator import SeedGenerator
from keras.src.trainers.compile_utils import CompileMetrics

from fdt.capture.patch import Patches
from fdt.capture.step.shares import correction, sum_loss
from fdt.capture.step.tracing import OptimizerParts, StepTrace
from fdt.capture.step.variables import tf_variables
from fdt.holes import current_holes

_MEANS = ("mean", "sum_over_batch_size")


class StepHooks:
    """The hooks; they do nothing outside a trace."""

    def __init__(self, trace: StepTrace):
        self._trace = trace

    def install(self, patches: Patches) -> None:
        """Puts them in place."""
        patches.wrap(keras.layers.Layer, "__call__", self._call)
        patches.wrap(keras.layers.BatchNormalization, "call", self._normalise)
        for optimizer in (BaseOptimizer, LossScaleOptimizer):
            patches.wrap(optimizer, "apply", self._apply)
            patches.wrap(optimizer, "scale_loss", self._scale_loss)
        patches.wrap(BaseOptimizer, "_get_current_learning_rate", self._learning_rate)
        patches.wrap(keras.layers.Layer, "add_loss", self._add_loss)
        patches.wrap(keras_loss, "reduce_values", self._reduce_values)
        patches.wrap(keras_loss, "apply_mask", _apply_mask)
        patches.wrap(reduction_metrics.Mean, "update_state", self._update_mean)
        patches.wrap(reduction_metrics.Sum, "update_state", self._update_mean)
        for metric_class in _subclasses(Metric):
            # A container of metrics shows the variables of those in it; the metric itself is the one to name.
            if issubclass(metric_class, CompileMetrics):
                continue
            if "result" in vars(metric_class):
                patches.wrap(metric_class, "result", self._metric_result)
            if "update_state" in vars(metric_class):
                patches.wrap(metric_class, "update_state", self._update_metric)
        patches.wrap(SeedGenerator, "next", self._next_seed)

    def _call(self, original: Callable[..., Any], layer: Any, *args: Any, **kwargs: Any) -> Any:
        own = type(layer).__module__.startswith("keras.") and not isinstance(layer, keras.Model)
        with self._trace.losses.in_layer() if own else contextlib.nullcontext():
            return original(layer, *args, **kwargs)

    def _apply(self, original: Callable[..., Any], optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
        trace = self._trace
        if not trace.is_outside_optimizers:
            return original(optimizer, grads, trainable_variables)
        if trainable_variables is None:
            trainable_variables = optimizer._trainable_variables
        trainable_variables = list(trainable_variables)
        exchanged = trace.exchange(list(grads), trainable_variables)
        with trace.in_optimizer():
            result = original(optimizer, exchanged, trainable_variables)
        trace.applied(_parts(optimizer))
        if isinstance(optimizer, LossScaleOptimizer):
            trace.applied(_parts(optimizer.inner_optimizer))
        return result

    def _scale_loss(self, original: Callable[..., Any], optimizer: Any, loss: Any) -> Any:
        """Weighs the loss of Keras's own step by the share: that weighs all gradients, and costs one multiplication.

        A train_step of the script's own may look at its gradients; there they are weighed in the hole.
        """
        trace, holes = self._trace, current_holes()
        if holes is None or not trace.own_step or not trace.is_outside_optimizers:
            return original(optimizer, loss)
        holes.weighted = True
        with trace.in_optimizer():
            return original(optimizer, trace.losses.as_mean(loss) * tf.cast(holes.share, loss.dtype))

    def _learning_rate(self, original: Callable[..., Any], optimizer: Any) -> Any:
        return self._trace.learning_rate(original(optimizer), lambda: optimizer.iterations.value)

    def _normalise(self, original: Callable[..., Any], layer: Any, *args: Any, **kwargs: Any) -> Any:
        return self._trace.normalise(original, layer, *args, **kwargs)

    def _add_loss(self, original: Callable[..., Any], layer: Any, loss: Any) -> Any:
        return original(layer, keras.tree.map_structure(self._trace.losses.added, loss))

    def _reduce_values(
        self,
        original: Callable[..., Any],
        values: Any,
        sample_weight: Any = None,
        reduction: str | None = "sum_over_batch_size",
    ) -> Any:
        loss = original(values, sample_weight, reduction)
        holes = current_holes()
        if holes is None or tuple(values.shape) in ((), (0,)) or self._trace.losses.mixes(values):
            # A function of the script's that has reduced by itself, or brought rows together.
            return self._trace.losses.as_mean(loss)
        if reduction == "sum":
            loss = sum_loss(holes, loss)
        elif reduction == "mean_with_sample_weight" and sample_weight is not None:
            loss *= correction(holes, tf.reduce_sum(tf.cast(sample_weight, loss.dtype)))
        return self._trace.losses.is_mean(loss) if reduction not in (None, "none") else loss

    def _update_mean(self, original: Callable[..., Any], metric: Any, values: Any, sample_weight: Any = None) -> Any:
        values, weight = self._trace.told_mean(metric, values, sample_weight)
        return original(metric, values, sample_weight=weight)

    def _update_metric(self, original: Callable[..., Any], metric: Any, *args: Any, **kwargs: Any) -> Any:
        with self._trace.updating(metric):
            return original(metric, *args, **kwargs)

    def _metric_result(self, original: Callable[..., Any], metric: Any) -> Any:
        result = original(metric)
        self._trace.gives_result(metric, result)
        return result

    def _next_seed(self, original: Callable[..., Any], generator: SeedGenerator, *args: Any, **kwargs: Any) -> Any:
        self._trace.draws(generator.state.value)
        return original(generator, *args, **kwargs)


def _parts(optimizer: Any) -> OptimizerParts:
    momentum = float(optimizer.momentum) if isinstance(optimizer, keras.optimizers.SGD) else 0.0
    return OptimizerParts(
        tf_variables(optimizer._trainable_variables),
        tf_variables(optimizer.variables),
        optimizer._iterations.value,
        {id(v): momentum for v in (tf_variables(optimizer.momentums) if momentum else ())},
    )


def _apply_mask(original: Callable[..., Any], sample_weight: Any, mask: Any, dtype: Any, reduction: Any) -> Any:
    weight = original(sample_weight, mask, dtype, reduction)
    holes = current_holes()
    if holes is None or mask is None or reduction not in _MEANS:
        return weight
    return weight * correction(holes, tf.reduce_sum(tf.cast(mask, weight.dtype)))


def _subclasses(base: type) -> list[type]:
    """Returns all that exist, the script's own included."""
    found: list[type] = []
    subclasses: list[type] = base.__subclasses__()
    for subclass in subclasses:
        found += [subclass, *_subclasses(subclass)]
    return list(dict.fromkeys(found))
