"""Whether a training fits into its workers' memory, and what they hold in parts so that it does."""

from collections.abc import Mapping

import pytest

from fdt.base.held import HeldAs, memory_bytes
from fdt.base.memory_need import MemoryNeed
from fdt.division import memory
from fdt.division.memory import PROCESS_BYTES, needed
from fdt.division.variable_layouts import chosen, everything, need_of
from fdt.errors import UnsupportedError, UsageError
from fdt.v1 import program_pb2

_ROWS, _WIDTH = 1000, 25_000
_BYTES = _ROWS * _WIDTH * 4


def _program(num_weights: int = 4, sparse: bool = False) -> program_pb2.StepProgram:
    """Weights of 100 MB, with two moments each."""
    program = program_pb2.StepProgram()
    for number in range(3 * num_weights):
        role = program_pb2.ROLE_TRAINABLE if number < num_weights else program_pb2.ROLE_OPTIMIZER
        program.variables.add(tensor=program_pb2.Tensor(dtype="float32", shape=[_ROWS, _WIDTH]), role=role)
    program.variables.add(tensor=program_pb2.Tensor(dtype="int64"), role=program_pb2.ROLE_OPTIMIZER)
    gradients = [program_pb2.Gradient(variable=i, sparse=sparse) for i in range(num_weights)]
    program.holes.add(kind=program_pb2.Hole.KIND_GRADIENTS, function="marked", gradients=gradients)
    return program


def _no_handles() -> Mapping[int, object]:
    raise AssertionError("no table is looked for")


def _held(num_workers: int, held: HeldAs, most: int | None, sparse: bool = False) -> int:
    return len(chosen(_program(sparse=sparse), num_workers, held, _no_handles, most))  # type: ignore[arg-type]


def test_what_a_worker_needs() -> None:
    program = _program()
    whole, halves = needed(program, {}), needed(program, everything(program, 2))
    assert whole.state == 12 * _BYTES + 8 and whole.step == 8 * _BYTES
    assert halves.state == 6 * _BYTES + 8
    # Parts of all gradients; of one weight at a time the whole, with its gradient and the copies that travel.
    assert 2 * _BYTES < halves.step < 7 * _BYTES
    assert whole.bytes == PROCESS_BYTES + whole.state + whole.step
    # How many rows a batch has is not known.
    assert needed(_program(sparse=True), {}).step == 0


def test_by_number_of_workers_it_is_what_each_needs() -> None:
    program = _program()
    need = need_of(program)
    assert need.whole == needed(program, {}).bytes
    for workers in (2, 4, 5, 8):
        assert need.in_parts(workers) == needed(program, everything(program, workers)).bytes


def test_all_is_held_in_parts_where_it_does_not_fit_otherwise() -> None:
    program = _program()
    whole, fourths = (needed(program, layouts).bytes for layouts in ({}, everything(program, 4)))
    assert _held(4, HeldAs.AUTO, None) == 0 and _held(4, HeldAs.AUTO, whole) == 0
    assert _held(4, HeldAs.AUTO, whole - 1) == 12 and _held(4, HeldAs.AUTO, fourths) == 12
    assert _held(4, HeldAs.PARTS, None) == 12


@pytest.mark.parametrize(
    ("workers", "held", "fitting", "words"),
    [
        (1, HeldAs.AUTO, 2, ["1 worker needs 2.", "With --workers 2 it fits"]),
        (2, HeldAs.AUTO, 4, ["each of 2 workers needs", "With --workers 4 it fits"]),
        (2, HeldAs.PARTS, 5, ["each of 2 workers needs", "With --workers 5 it fits"]),
        (4, HeldAs.WHOLE, 4, ["In parts each needs", "leave --variables whole"]),
        (4, HeldAs.WHOLE, 3, ["In parts each needs", "leave --variables whole"]),
    ],
)
def test_what_does_not_fit_is_refused_with_what_would(
    workers: int, held: HeldAs, fitting: int, words: list[str]
) -> None:
    program = _program()
    most = needed(program, everything(program, fitting)).bytes
    with pytest.raises(UnsupportedError, match="does not fit into memory") as refused:
        _held(workers, held, most)
    for each in (*words, "may use", "of variables", "--memory"):
        assert each in str(refused.value), each


def test_no_number_of_workers_helps_where_one_weight_is_too_large() -> None:
    with pytest.raises(UnsupportedError, match="With no number of workers it would fit"):
        _held(2, HeldAs.AUTO, PROCESS_BYTES + _BYTES)


def test_how_many_workers_are_told() -> None:
    need = MemoryNeed(whole=7_000_000_000, fixed=1_000_000_000, shared=6_000_000_000)
    assert need.least_workers(8_000_000_000) == 1 and need.least_workers(2_500_000_000) == 4
    assert need.least_workers(1_000_000_000) is None
    assert "does not fit with 1 or 2 workers of 2.50 GB; with 4 it does" in need.line((1, 2, 4), 2_500_000_000)
    assert "(2.50 GB each)" in need.line((4,), 2_500_000_000) and "not fit" not in need.line((4,), 2_500_000_000)
    assert "fits with no number of workers of 1.00 GB" in need.line((2,), 1_000_000_000)
    for most in (None, 8_000_000_000):
        assert need.line((2,), most).endswith("7.00 GB with all variables")


def test_how_much_memory_workers_have_is_a_number() -> None:
    assert memory_bytes({}) is None and memory_bytes({"memory": "2500"}) == 2500
    for wrong in ("", "2GB", "-1", "0", "²"):
        with pytest.raises(UsageError, match="number of bytes"):
            memory_bytes({"memory": wrong})


def test_what_is_held_is_said() -> None:
    program = _program()
    assert str(memory.account(program, everything(program, 4))) == (
        "held in parts: 12 of 13 variables, 100% of 1.20 GB: 300 MB a worker"
    )
