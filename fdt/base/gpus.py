"""Finds this machine's GPUs, without any library that would occupy them."""

import os
from pathlib import Path

DEVICES = Path("/dev")


def has_gpu_devices() -> bool:
    """Returns whether this machine has devices of GPUs, of any maker."""
    return any(any(DEVICES.glob(pattern)) for pattern in ("nvidia[0-9]*", "nvidiactl", "dxg", "kfd"))


def num_gpus() -> int:
    """Returns how many NVIDIA GPUs this machine has that CUDA_VISIBLE_DEVICES leaves visible."""
    found = [path for path in DEVICES.glob("nvidia*") if path.name.removeprefix("nvidia").isdecimal()]
    return min(len(found), len(_visible(os.environ.get("CUDA_VISIBLE_DEVICES"), len(found))))


def _visible(said: str | None, count: int) -> list[str]:
    """Returns the names before the first that is no GPU, as CUDA reads the variable."""
    if said is None:
        return [str(i) for i in range(count)]
    names = []
    for name in said.split(","):
        if not name.strip() or name.strip().startswith("-"):
            break
        names.append(name)
    return names
