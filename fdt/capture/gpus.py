"""Leaves this machine's GPUs to the workers: the script's own process, which computes little, sees none.

TensorFlow takes nearly all memory of every GPU that a process sees when that process makes its first variable. GPUs are hidden
and not removed, so that a script still finds them in `list_physical_devices`, and Keras still decides to compile.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from fdt.base.gpus import has_gpu_devices, num_gpus
from fdt.base.patch import Patches


def leave_to_workers(patches: Patches, num_workers: int, say: Callable[[str], None]) -> None:
    """Hides the GPUs, now and when the script chooses among them; does nothing on a machine that has none.

    Args:
        patches: Receives the hooks.
        num_workers: Workers on this machine.
        say: Called with messages to the user.
    """
    if not has_gpu_devices():
        return
    try:
        tf.config.set_visible_devices([], "GPU")
    except RuntimeError:
        say(
            "warning: this process has used the GPUs before, and keeps the memory that it took of them: workers may find too "
            "little. Attach before TensorFlow's first operation, or set TF_FORCE_GPU_ALLOW_GROWTH=true"
        )
    said: list[bool] = []

    def choose(original: Callable[..., Any], devices: Any, device_type: str | None = None) -> Any:
        # One device is a tuple, too.
        listed: Sequence[Any] = [devices] if isinstance(devices, tf.config.PhysicalDevice) else devices
        if device_type != "GPU" and not any(device.device_type == "GPU" for device in listed):
            return original(devices, device_type)
        if not said:
            said.append(True)
            say("tf.config.set_visible_devices: workers use all GPUs; choose among them by CUDA_VISIBLE_DEVICES")
        others = [device for device in listed if device.device_type != "GPU"]
        return original(others, device_type)

    for owner in (tf.config, tf.config.experimental):
        patches.wrap(owner, "set_visible_devices", choose)
    if found := num_gpus():
        say(_shared(found, num_workers))


def compute_in_full_precision() -> None:
    """Has products of float32 computed in float32, here and on workers, so that a difference of rounding stays small."""
    tf.config.experimental.enable_tensor_float_32_execution(False)


def _shared(gpus: int, workers: int) -> str:
    if gpus < workers:
        return f"GPUs: {gpus}, shared by {workers} workers; the script itself uses none"
    return f"GPUs: {gpus}, one for each worker; the script itself uses none"
