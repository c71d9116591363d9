"""Numbers of programs: found again, and let go when nobody uses them."""

import math

from fdt.client.programs import _KEPT, Programs
from fdt.v1 import program_pb2


class _Model:
    pass


def _sent(programs: Programs, digest: bytes, user: object) -> int:
    assert programs.find(digest) is None
    number = programs.add(digest, program_pb2.StepProgram())
    programs.use(number, user)
    return number


def test_a_program_is_sent_once_and_each_has_a_number_of_its_own() -> None:
    programs, users = Programs(), [_Model() for _ in range(20)]
    numbers = [_sent(programs, bytes([n]), user) for n, user in enumerate(users)]
    assert len(set(numbers)) == len(users) and programs.unused() == []
    assert [programs.find(bytes([n])) for n in range(len(users))] == numbers


def test_of_models_that_are_gone_the_workers_keep_the_newest() -> None:
    programs, numbers, gone = Programs(), [], []
    stays = _Model()
    first = _sent(programs, b"stays", stays)
    for n in range(50):
        gone += programs.unused()
        # Gone as soon as nobody names it: no cycle that a collection would have to find, which takes seconds beside TensorFlow.
        numbers.append(_sent(programs, bytes([n]), _Model()))
    gone += programs.unused()
    assert gone == numbers[:-_KEPT], "each once, in the order of their coming"
    assert programs.find(b"stays") == first
    assert [n for n in range(50) if programs.find(bytes([n])) is not None] == list(range(50 - _KEPT, 50))


def test_a_program_with_two_users_stays_until_both_are_gone() -> None:
    programs, one, other = Programs(), _Model(), _Model()
    number = _sent(programs, b"shared", one)
    programs.use(number, other)
    del one
    for n in range(2 * _KEPT):
        _sent(programs, bytes([n]), _Model())
    assert number not in programs.unused()
    del other
    for n in range(10, 10 + 2 * _KEPT):
        _sent(programs, bytes([n]), _Model())
    assert number in programs.unused()


def test_the_sizes_of_a_state() -> None:
    tensor, variable = program_pb2.Tensor, program_pb2.Variable
    weight = variable(tensor=tensor(dtype="float32", shape=[10, 3]), role=program_pb2.ROLE_TRAINABLE)
    total = variable(tensor=tensor(dtype="float64", shape=[]), role=program_pb2.ROLE_METRIC)
    text = variable(tensor=tensor(dtype="string", shape=[2]), role=program_pb2.ROLE_OTHER)
    program = program_pb2.StepProgram(variables=[weight, total, text])
    programs = Programs()
    number = programs.add(b"", program)
    assert programs.state_bytes(number, [0]) == 64 + 120
    assert programs.state_bytes(number, [0, 1]) == 64 + 120 + 64 + 8
    assert programs.state_bytes(number, []) == 64 + 8, "the metrics"
    assert programs.state_bytes(number, [1, 2]) == math.inf, "how long a text is, is not known"
    program.outputs.add(tensor=tensor(dtype="float32", shape=[-1]))
    assert programs.state_bytes(programs.add(b"2", program), []) == math.inf
    assert programs.state_bytes(5, [0]) == math.inf, "no such program"
