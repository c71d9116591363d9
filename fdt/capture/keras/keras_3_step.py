"""Hooks the functions of Keras 3 that a training step calls, and reports the calls to a trace's observer."""

from collections.abc import Callable
from typing import Any

import keras
from keras.src.backend.tensorflow import nn
from keras.src.metrics.metric import Metric
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer
from keras.src.random.seed_generator import SeedGenerator
from keras.src.trainers.compile_utils import CompileMetrics

from fdt.base.patch import Patches
from fdt.capture.step.eager import probabilities
from fdt.capture.step.observer import OptimizerParts, StepObserver
from fdt.capture.step.variables import tf_variables


class StepHooks:
    """The hooks; they do nothing outside a trace."""

    def __init__(self, seen: StepObserver):
        self._seen = seen

    def install(self, patches: Patches) -> None:
        """Installs the hooks."""
        patches.wrap(keras.layers.BatchNormalization, "call", self._normalise)
        for optimizer in (BaseOptimizer, LossScaleOptimizer):
            patches.wrap(optimizer, "apply", self._apply)
            patches.wrap(optimizer, "scale_loss", self._scale_loss)
        patches.wrap(BaseOptimizer, "_get_current_learning_rate", self._learning_rate)
        for metric_class in _subclasses(Metric):
            # A container lists its metrics' variables too; the observer must record the metric itself.
            if issubclass(metric_class, CompileMetrics):
                continue
            if "result" in vars(metric_class):
                patches.wrap(metric_class, "result", self._metric_result)
            if "update_state" in vars(metric_class):
                patches.wrap(metric_class, "update_state", self._update_metric)
        patches.wrap(SeedGenerator, "next", self._next_seed)
        patches.wrap(nn, "_get_logits", probabilities)

    def _apply(self, original: Callable[..., Any], optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
        seen = self._seen
        if not seen.is_outside_optimizers:
            return original(optimizer, grads, trainable_variables)
        if trainable_variables is None:
            trainable_variables = optimizer._trainable_variables
        trainable_variables = list(trainable_variables)
        exchanged = seen.exchange(list(grads), trainable_variables, _loss_scale(optimizer))
        with seen.in_optimizer():
            result = original(optimizer, exchanged, trainable_variables)
        seen.applied(_parts(optimizer))
        if isinstance(optimizer, LossScaleOptimizer):
            seen.applied(_parts(optimizer.inner_optimizer))
        return result

    def _scale_loss(self, original: Callable[..., Any], optimizer: Any, loss: Any) -> Any:
        return self._seen.scales(original(optimizer, loss), _loss_scale(optimizer))

    def _learning_rate(self, original: Callable[..., Any], optimizer: Any) -> Any:
        return self._seen.learning_rate(original(optimizer), lambda: optimizer.iterations.value)

    def _normalise(self, original: Callable[..., Any], layer: Any, *args: Any, **kwargs: Any) -> Any:
        return self._seen.normalises(original, layer, *args, **kwargs)

    def _update_metric(self, original: Callable[..., Any], metric: Any, *args: Any, **kwargs: Any) -> Any:
        self._seen.updates(metric)
        return original(metric, *args, **kwargs)

    def _metric_result(self, original: Callable[..., Any], metric: Any) -> Any:
        result = original(metric)
        self._seen.gives_result(metric, result)
        return result

    def _next_seed(self, original: Callable[..., Any], generator: SeedGenerator, *args: Any, **kwargs: Any) -> Any:
        self._seen.draws(generator.state.value)
        return original(generator, *args, **kwargs)


def _loss_scale(optimizer: Any) -> Any:
    """Returns the factor by which an optimizer scales the loss, and which it expects in its gradients; None if it has none."""
    if isinstance(optimizer, LossScaleOptimizer):
        return optimizer.dynamic_scale.value if optimizer.built else optimizer.initial_scale
    return optimizer.loss_scale_factor


def _parts(optimizer: Any) -> OptimizerParts:
    momentum = float(optimizer.momentum) if isinstance(optimizer, keras.optimizers.SGD) else 0.0
    return OptimizerParts(
        tf_variables(optimizer._trainable_variables),
        tf_variables(optimizer.variables),
        optimizer._iterations.value,
        {id(v): momentum for v in (tf_variables(optimizer.momentums) if momentum else ())},
    )


def _subclasses(base: type) -> list[type]:
    """Returns all direct and indirect subclasses, the script's own included."""
    found: list[type] = []
    subclasses: list[type] = base.__subclasses__()
    for subclass in subclasses:
        found += [subclass, *_subclasses(subclass)]
    return list(dict.fromkeys(found))
