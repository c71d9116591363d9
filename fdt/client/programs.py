"""Numbers the programs of a job, knows the sizes of their states, and decides which of them the workers may forget."""

import collections
import itertools
import math
import weakref
from collections.abc import Sequence

from fdt.v1 import program_pb2

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
        # Of each program: bytes of each variable, and of the metrics and outputs together.
        self._variable_bytes: dict[int, list[float]] = {}
        self._metric_bytes: dict[int, float] = {}

    def find(self, digest: bytes) -> int | None:
        """Returns the number of a program that the workers have; None if they do not have it."""
        if digest in self._numbers:
            self._numbers.move_to_end(digest)
        return self._numbers.get(digest)

    def add(self, digest: bytes, program: program_pb2.StepProgram) -> int:
        """Returns the number of a program that is sent now."""
        self._numbers[digest] = number = next(self._new)
        sizes = self._variable_bytes[number] = [_num_bytes(variable.tensor) for variable in program.variables]
        metrics = (
            size
            for size, variable in zip(sizes, program.variables, strict=True)
            if variable.role == program_pb2.ROLE_METRIC
        )
        self._metric_bytes[number] = sum(metrics) + sum(_num_bytes(output.tensor) for output in program.outputs)
        return number

    def state_bytes(self, number: int, variables: Sequence[int]) -> float:
        """Returns the bytes of variables of a program, or, if none are named, of its metrics and outputs; infinity if these are
        not known.
        """
        sizes = self._variable_bytes.get(number)
        if sizes is None:
            return math.inf
        return sum(sizes[place] for place in variables) if variables else self._metric_bytes[number]

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
            del self._variable_bytes[number], self._metric_bytes[number]
        return [number for _, number in idle[:-_KEPT]]


def _num_bytes(tensor: program_pb2.Tensor) -> float:
    # It needs TensorFlow, which is there when there is a program.
    from fdt.program.step_program import dtype_of

    if tensor.dtype == "string" or any(size < 0 for size in tensor.shape):
        return math.inf
    # Each value begins at a multiple of 64 bytes; see `State`.
    return 64 + math.prod(tensor.shape) * dtype_of(tensor).itemsize
