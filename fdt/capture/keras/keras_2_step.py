"""Hooks the functions of Keras 2 that a training step calls, and reports the calls to a trace's observer."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tf_keras
from tf_keras.src import backend
from tf_keras.src.layers.normalization.batch_normalization import BatchNormalizationBase
from tf_keras.src.mixed_precision.loss_scale_optimizer import LossScaleOptimizer, LossScaleOptimizerV3
from tf_keras.src.optimizers.legacy.optimizer_v2 import OptimizerV2
from tf_keras.src.optimizers.optimizer import Optimizer, _BaseOptimizer
from tf_keras.src.utils import metrics_utils

from fdt.base.patch import Patches
from fdt.capture.step.eager import probabilities
from fdt.capture.step.observer import OptimizerParts, StepObserver
from fdt.capture.step.variables import tf_variables

OPTIMIZERS = (Optimizer, OptimizerV2, LossScaleOptimizer, LossScaleOptimizerV3)


class _Active:
    """Holds the observer of the running trace."""

    seen: StepObserver | None = None


def hook_metrics(patches: Patches) -> None:
    """Hooks metrics made from now on, so that they report to the running trace: each keeps the methods it was made with."""

    def update_state_wrapper(original: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
        wrapped = original(function)

        @functools.wraps(wrapped)
        def update_state(metric: Any, *args: Any, **kwargs: Any) -> Any:
            if _Active.seen is not None:
                _Active.seen.updates(metric)
            return wrapped(metric, *args, **kwargs)

        return update_state

    def result_wrapper(original: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
        wrapped = original(function)

        @functools.wraps(wrapped)
        def result(metric: Any, *args: Any) -> Any:
            found = wrapped(metric, *args)
            if _Active.seen is not None:
                _Active.seen.gives_result(metric, found)
            return found

        return result

    patches.wrap(metrics_utils, "update_state_wrapper", update_state_wrapper)
    patches.wrap(metrics_utils, "result_wrapper", result_wrapper)


class StepHooks:
    """All hooks but those of metrics; they do nothing outside a trace."""

    def __init__(self, seen: StepObserver):
        self._seen = seen

    def install(self, patches: Patches) -> None:
        """Installs the hooks."""
        patches.set(_Active, "seen", self._seen)
        patches.wrap(BatchNormalizationBase, "call", self._normalise)
        for optimizer in OPTIMIZERS:
            if "apply_gradients" in vars(optimizer):
                patches.wrap(optimizer, "apply_gradients", self._apply_gradients)
        for optimizer in (LossScaleOptimizer, LossScaleOptimizerV3):
            patches.wrap(optimizer, "get_scaled_loss", self._scale_loss)
        rate = vars(_BaseOptimizer)["learning_rate"]
        patches.set(_BaseOptimizer, "learning_rate", property(self._learning_rate(rate.fget), rate.fset))
        patches.wrap(OptimizerV2, "_decayed_lr", self._decayed_rate)
        patches.wrap(backend, "_get_logits", probabilities)

    def _apply_gradients(
        self, original: Callable[..., Any], optimizer: Any, grads_and_vars: Any, *args: Any, **kwargs: Any
    ) -> Any:
        seen = self._seen
        if not seen.is_outside_optimizers:
            return original(optimizer, grads_and_vars, *args, **kwargs)
        pairs = list(grads_and_vars)
        exchanged = seen.exchange([gradient for gradient, _ in pairs], [variable for _, variable in pairs])
        with seen.in_optimizer():
            filled = zip(exchanged, [variable for _, variable in pairs], strict=True)
            result = original(optimizer, list(filled), *args, **kwargs)
        seen.applied(_parts(optimizer))
        if isinstance(optimizer, LossScaleOptimizer | LossScaleOptimizerV3):
            seen.applied(_parts(optimizer.inner_optimizer))
        return result

    def _scale_loss(self, original: Callable[..., Any], optimizer: Any, loss: Any) -> Any:
        # A script that computes gradients itself divides them by the scale before an optimizer gets them.
        return self._seen.scales(original(optimizer, loss), optimizer.loss_scale)

    def _learning_rate(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def learning_rate(optimizer: Any) -> Any:
            return self._seen.learning_rate(original(optimizer), lambda: optimizer.iterations)

        return learning_rate

    def _decayed_rate(self, original: Callable[..., Any], optimizer: Any, dtype: Any) -> Any:
        return self._seen.learning_rate(original(optimizer, dtype), lambda: optimizer.iterations)

    def _normalise(self, original: Callable[..., Any], layer: Any, *args: Any, **kwargs: Any) -> Any:
        return self._seen.normalises(original, layer, *args, **kwargs)


def _parts(optimizer: Any) -> OptimizerParts:
    if isinstance(optimizer, OptimizerV2):
        variables = [*optimizer.variables(), *vars(optimizer).get("_hyper", {}).values()]
    else:
        rates = (getattr(optimizer, name, None) for name in ("_learning_rate", "_current_learning_rate"))
        variables = [*optimizer.variables, *rates]
    own = [variable for variable in variables if isinstance(variable, tf.Variable)]
    return OptimizerParts([], tf_variables(own), optimizer.iterations, _momenta(optimizer))


def _momenta(optimizer: Any) -> dict[int, float]:
    if isinstance(optimizer, tf_keras.optimizers.legacy.SGD) and optimizer._momentum:
        momentum = float(optimizer._serialize_hyperparameter("momentum"))
        slots = [v for v in optimizer.variables() if v is not optimizer.iterations]
        return {id(v): momentum for v in tf_variables(slots)}
    if isinstance(optimizer, tf_keras.optimizers.SGD) and optimizer.momentum:
        return {id(v): float(optimizer.momentum) for v in tf_variables(optimizer.momentums)}
    return {}
