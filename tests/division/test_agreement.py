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
from hfdt.runtime import HorovodEngine, fingerprint

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


def test_on_a_gpu_rounding_is_taken_from_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    own = [FIRST[0] + np.float32(1e-6), FIRST[1]]
    for held, first in zip(_agreed(own, monkeypatch, gpu=True), FIRST, strict=True):
        np.testing.assert_array_equal(held, first)


@pytest.mark.parametrize(
    ("place", "gpu", "deterministic"),
    [(0, False, False), (0, True, True), (1, True, False)],
    ids=["on a CPU", "where the script is deterministic", "of an integer"],
)
def test_a_difference_that_is_no_rounding_fails(
    place: int, gpu: bool, deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = [value + 1 if i == place else value for i, value in enumerate(FIRST)]
    with pytest.raises(WorkerError, match=f"'v{place}' of rank 1 differs"):
        _agreed(own, monkeypatch, gpu=gpu, deterministic=deterministic)
