"""Training that this version cannot distribute is stopped where it begins, never run on one machine in silence."""

import sys
import traceback
from collections.abc import Callable
from typing import Any

from fdt.capture.patch import Patches
from fdt.errors import UnsupportedError

_REMEDY = "Train with model.fit on arrays; put a custom step into train_step of a keras.Model."


def guard_keras_optimizers(patches: Patches) -> None:
    """Refuses gradients that reach a Keras optimizer outside a step that is being captured."""
    from keras.src.optimizers.base_optimizer import BaseOptimizer

    from fdt.program import current_holes

    def apply(original: Callable[..., Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if current_holes() is None:
            raise _refusal(
                f"optimizer.apply of {type(optimizer).__name__} was called in a training loop of the script's own "
                "(tf.GradientTape)"
            )
        return original(optimizer, *args, **kwargs)

    patches.wrap(BaseOptimizer, "apply", apply)


def guard_v1_optimizers(patches: Patches) -> None:
    """Refuses TensorFlow 1's optimizers (tf.compat.v1.train)."""
    from tensorflow.python.training.optimizer import Optimizer

    def compute_gradients(original: Callable[..., Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        raise _refusal(
            f"tf.compat.v1.train.{type(optimizer).__name__} was asked for gradients (TensorFlow 1 graph training)"
        )

    patches.wrap(Optimizer, "compute_gradients", compute_gradients)
    patches.wrap(Optimizer, "apply_gradients", compute_gradients)


def guard_keras_2(patches: Patches) -> None:
    """Refuses `fit` of Keras 2 (the package tf_keras)."""
    import tf_keras

    def fit(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
        raise UnsupportedError(
            f"{_where()}: {type(model).__name__}.fit of Keras 2 (tf_keras, TF_USE_LEGACY_KERAS=1) is not distributed in this "
            "version. Use Keras 3: unset TF_USE_LEGACY_KERAS, or import keras in place of tf_keras."
        )

    for name in ("fit", "train_on_batch"):
        patches.wrap(tf_keras.Model, name, fit)


def _refusal(what: str) -> UnsupportedError:
    return UnsupportedError(f"{_where()}: {what}, which is not distributed in this version. {_REMEDY}")


def _where() -> str:
    """Returns file and line of the script's innermost frame."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    frames = [f for f in traceback.extract_stack() if f.filename == script]
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else "in the script"
