"""What worker processes are started with."""

from pathlib import Path

import pytest

from fdt.worker.processes import last_words, with_huge_pages

NOISE = """\
fdt worker: rank 0 of job job-1
2026-11-24 09:39:39.847703: I tensorflow/core/util/port.cc:153] oneDNN custom operations are on.
2026-11-24 09:39:39.893581: E external/local_xla/cuda_fft.cc:477] Unable to register cuFFT factory: Attempting to register
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
E0000 00:00:1795513179.948275   12442 cuda_dnn.cc:8310] Unable to register cuDNN factory: Attempting to register factory
W0000 00:00:1795513179.9   12442 gpu_device.cc:1] Cannot dlopen some GPU libraries.
To enable the following instructions: AVX2 AVX512F FMA, in other operations, rebuild TensorFlow
2026-11-24 09:39:45.000389: E external/local_xla/cuda_driver.cc:152] failed call to cuInit: INTERNAL: CUDA error
WARNING:tensorflow:From flops_registry.py:453: tensor_shape is deprecated and will be removed in a future version.
Instructions for updating:
This API was designed for TensorFlow v1. See https://www.tensorflow.org/guide/migrate for instructions
"""


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", "glibc.malloc.hugetlb=1"),
        ("glibc.malloc.arena_max=2", "glibc.malloc.arena_max=2:glibc.malloc.hugetlb=1"),
        ("glibc.malloc.hugetlb=0", "glibc.malloc.hugetlb=0"),
        ("glibc.malloc.hugetlb=2:glibc.malloc.arena_max=2", "glibc.malloc.hugetlb=2:glibc.malloc.arena_max=2"),
    ],
)
def test_malloc_gets_huge_pages_unless_the_user_has_said_otherwise(given: str, expected: str) -> None:
    assert with_huge_pages(given) == expected


def test_the_end_of_a_log_is_its_last_line_or_what_crashed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_words(log) == ""
    log.write_text("first\nlast\n\n")
    assert last_words(log) == "last"
    log.write_text(f"first\nlast\n{NOISE}")
    assert last_words(log) == "last"
    log.write_text(NOISE)
    assert last_words(log) == "", "what is in every log explains nothing"
    log.write_text(f"{NOISE}2026-11-24 09:58:39.8: F tensorflow/core/a.cc:1] Check failed: 1 == 2\n{NOISE}")
    assert "Check failed: 1 == 2" in last_words(log)
    crash = "Fatal Python error: Segmentation fault\n\nCurrent thread 0x1:\n  File a.py, line 1 in f"
    log.write_text(f"first\n{crash}\n\nExtension modules: numpy (total: 1)\n")
    assert last_words(log) == crash
