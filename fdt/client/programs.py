"""Numbers the programs of a job, and tells which of them the workers may forget."""

import collections
import itertools
import weakref

# Programs that workers keep although the script has let go of what they were for: it may come back to one of them.
_KEPT = 2


class Programs:
    """Numbers by content; a number never comes again."""

    def __init__(self) -> None:
        """Begins with none."""
        self._new = itertools.count()
        # By digest, the one that was asked for last at the end.
        self._numbers: collections.OrderedDict[bytes, int] = collections.OrderedDict()
        self._users: collections.Counter[int] = collections.Counter()
        # Of users that are gone. Filled while anything else may be running: garbage is collected at any moment.
        self._gone: collections.deque[int] = collections.deque()

    def find(self, digest: bytes) -> int | None:
        """Returns the number of a program that the workers have; None if they have not."""
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
        """Returns programs that nobody uses any more, but for the newest of them; they are unknown from then on."""
        while self._gone:
            self._users[self._gone.popleft()] -= 1
        idle = [(digest, number) for digest, number in self._numbers.items() if not self._users[number]]
        for digest, number in idle[:-_KEPT]:
            del self._numbers[digest], self._users[number]
        return [number for _, number in idle[:-_KEPT]]
