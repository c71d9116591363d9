"""Numbers of programs: found again, and let go when nobody uses them."""

from fdt.client.programs import _KEPT, Programs


class _Model:
    pass


def _sent(programs: Programs, digest: bytes, user: object) -> int:
    assert programs.find(digest) is None
    number = programs.add(digest)
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
