"""Records which variables of a worker's programs have values; before that they hold meaningless zeros.

Does no I/O: the worker records each instruction here, and one that would read a variable without a value is refused.
"""

from collections.abc import Collection, Iterable

from fdt.errors import ProtocolError
from fdt.v1 import program_pb2


class AssignedVariables:
    """The record of one worker. It accepts unknown programs and variables, which the engine refuses."""

    def __init__(self) -> None:
        # By program and by index, the names of the variables that have no value yet.
        self._missing: dict[int, dict[int, str]] = {}
        self._num_variables: dict[int, int] = {}

    def load(self, program: int, source: program_pb2.StepProgram) -> None:
        """Records a new program, none of whose variables has a value."""
        self._num_variables[program] = len(source.variables)
        self._missing[program] = {i: variable.tensor.name for i, variable in enumerate(source.variables)}

    def forget(self, program: int) -> None:
        """Drops a program."""
        del self._num_variables[program], self._missing[program]

    def assign(self, program: int, indices: Iterable[int]) -> None:
        """Records that variables have values."""
        for i in indices:
            self._missing.get(program, {}).pop(i, None)

    def require(self, program: int, indices: Collection[int] | None = None) -> None:
        """Raises a ProtocolError unless variables have values.

        Args:
            program: Its number.
            indices: The variables' indices; None for all variables of the program.
        """
        missing = self._missing.get(program, {})
        read = [name for i, name in missing.items() if indices is None or i in indices]
        if read:
            raise ProtocolError(
                f"{len(read)} variable(s) of program {program} are read before they have a value, {read[0]!r} first. "
                "Expected: the client assigns each variable before it requests a step or its value."
            )

    def assigned(self, program: int) -> list[int] | None:
        """Returns the indices of the variables that have values; None if all have."""
        missing = self._missing.get(program)
        return [i for i in range(self._num_variables[program]) if i not in missing] if missing else None
