"""Numbers the programs of a job, and decides which of them the workers may forget."""

import collections
import itertools
import weakref

# Number of unused programs that workers keep, since the script may use one of them again.
_KEPT = 2


class Programs:
    """Numbers of programs by content; a number is never reused."""

    def __init__(self) -> None:
        """Begins with none."""
        self._new = itertools.count()
        # By digest, in the order of the last request.
        self._numbers: collections.OrderedDict[bytes, int] = collections.OrderedDict()
        self._users: collections.Counter[int] = collections.Counter()
        # Program numbers of users that are gone. Appended to by finalizers, at any moment and in any thread.
        self._gone: collections.deque[int] = collections.deque()

    def find(self, digest: bytes) -> int | None:
        """Returns the number of a program that the workers have; None if they do not have it."""
        if digest in self._numbers:
            self._numbers.move_to_end(digest)
        return self._numbers.get(digest)

    def add(self, digest: bytes) -> int:
        """Returns the number of a program that is sent now."""
        self._numbers[digest] = number = next(self._new)
        return number

    def use(self, number: int, user: object) -> None:
        """Keeps a program for as long as an object lives."""
        self._users[number] += 1
        weakref.finalize(user, self._gone.append, number).atexit = False

    def unused(self) -> list[int]:
        """Returns the programs without users, except the newest of them, and removes their numbers."""
        while self._gone:
            self._users[self._gone.popleft()] -= 1
        idle = [(digest, number) for digest, number in self._numbers.items() if not self._users[number]]
        for digest, number in idle[:-_KEPT]:
            del self._numbers[digest], self._users[number]
        return [number for _, number in idle[:-_KEPT]]
