"""Which GPUs a process sees."""

from pathlib import Path

import pytest

from fdt.base import gpus


@pytest.mark.parametrize(
    ("said", "count"),
    [(None, 3), ("", 0), ("-1", 0), ("1", 1), ("2,0", 2), ("0,-1,2", 1), ("GPU-8f2a,1", 2), ("0,1,2,3,4", 3)],
)
def test_gpus_are_counted_as_cuda_counts_them(
    said: str | None, count: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    monkeypatch.setattr(gpus, "DEVICES", tmp_path)
    if said is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", said)
    assert gpus.num_gpus() == count
    assert gpus.has_gpu_devices()
