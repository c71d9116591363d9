"""What ranks do when they find that they hold other values."""

from collections.abc import Sequence
from typing import cast

import numpy as np
import pytest
import tensorflow as tf

from fdt.errors import WorkerError
from fdt.program.step_program import LoadedProgram
from fdt.v1 import program_pb2
from hfdt import runtime
from hfdt.mesh import Mesh
from hfdt.runtime import HorovodEngine, fingerprint, is_rounding

FIRST: list[np.ndarray] = [np.array([1.0, 2.0], np.float32), np.array(5, np.int64)]


def _loaded(values: Sequence[np.ndarray], deterministic: bool = False) -> LoadedProgram:
    source = program_pb2.StepProgram(
        variables=[
            program_pb2.Variable(tensor=program_pb2.Tensor(name=f"v{i}", dtype=value.dtype.name, shape=value.shape))
            for i, value in enumerate(values)
        ],
        computation=program_pb2.Computation(deterministic=deterministic),
    )
    return LoadedProgram(source, None, [tf.Variable(value) for value in values], [], {})


def _agreed(
    own: Sequence[np.ndarray], monkeypatch: pytest.MonkeyPatch, *, gpu: bool, deterministic: bool = False
) -> list[np.ndarray]:
    """Returns what rank 1 holds when rank 0 holds `FIRST`."""

    def gathered(_: str, row: np.ndarray, mesh: object) -> np.ndarray:
        return np.stack([np.concatenate([fingerprint(value) for value in FIRST]), row])

    by_bytes = {value.tobytes(): first for value, first in zip(own, FIRST, strict=True)}
    monkeypatch.setattr(runtime.exchange, "gather", gathered)
    monkeypatch.setattr(
        runtime.exchange, "of_first_rank", lambda _, arrays: [by_bytes[array.tobytes()] for array in arrays]
    )
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda _: ["GPU:0"] if gpu else [])
    engine, loaded = HorovodEngine(), _loaded(own, deterministic)
    engine._size, engine._rank = 2, 1
    engine._mesh = cast(Mesh, object())
    engine._agree(loaded, range(len(own)), own)
    return [variable.numpy() for variable in loaded.variables]


@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize("by", [1e-6, -3e-4])
def test_rounding_is_taken_from_rank_0(gpu: bool, by: float, monkeypatch: pytest.MonkeyPatch) -> None:
    own = [FIRST[0] + np.float32(by), FIRST[1]]
    for held, first in zip(_agreed(own, monkeypatch, gpu=gpu), FIRST, strict=True):
        np.testing.assert_array_equal(held, first)


def test_on_a_gpu_any_difference_of_real_numbers_is(monkeypatch: pytest.MonkeyPatch) -> None:
    np.testing.assert_array_equal(_agreed([FIRST[0] + 1, FIRST[1]], monkeypatch, gpu=True)[0], FIRST[0])


@pytest.mark.parametrize(
    ("place", "gpu", "deterministic"),
    [(0, False, False), (0, True, True), (1, True, False), (1, False, False)],
    ids=["on a CPU", "where the script is deterministic", "of an integer", "of an integer on a CPU"],
)
def test_a_difference_that_is_no_rounding_fails(
    place: int, gpu: bool, deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = [value + 1 if i == place else value for i, value in enumerate(FIRST)]
    with pytest.raises(WorkerError, match=f"'v{place}' of rank 1 differs"):
        _agreed(own, monkeypatch, gpu=gpu, deterministic=deterministic)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64"])
def test_rounding_is_that_of_the_type(dtype: str) -> None:
    kind = tf.as_dtype(dtype)
    value = np.array([3.0, -0.5, np.nan, 0.0]).astype(kind.as_numpy_dtype)
    eps = {"float16": 2**-10, "bfloat16": 2**-7, "float64": 2**-52}.get(dtype, 2**-23) ** 0.5
    assert is_rounding(value, value)
    assert is_rounding(value + np.array(eps, value.dtype), value)
    assert not is_rounding(value + np.array(6 * eps, value.dtype), value)
    assert not is_rounding(np.zeros(4, value.dtype), value)
