"""Hooks the generations of Keras that a script has imported: a step may use either."""

import sys

from fdt.base.patch import Patches
from fdt.capture.step.observer import StepObserver


def hook_imported(patches: Patches, seen: StepObserver) -> None:
    """Hooks the functions of each imported generation that a step calls, so that they report to `seen`."""
    if "keras.src.optimizers" in sys.modules:
        from fdt.capture.keras import keras_3_step

        keras_3_step.StepHooks(seen).install(patches)
    if "tf_keras.src.optimizers" in sys.modules:
        from fdt.capture.keras import keras_2_step

        keras_2_step.StepHooks(seen).install(patches)
