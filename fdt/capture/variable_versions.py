"""Records where each variable's newest value is: with the script, or with one of its steps on the pool."""

import collections
from collections.abc import Collection, Hashable, Iterable
from typing import Generic, TypeVar

Step = TypeVar("Step", bound=Hashable)


class VariableVersions(Generic[Step]):
    """Which version of each variable the script has, and each of its steps on the pool; variables are named by ids.

    A step that writes a variable makes a new version, and so does the script when it may have written it. A reader needs the
    newest version: `missing` returns what a step lacks and from where to send it, `away` what the script lacks.
    """

    def __init__(self) -> None:
        """All variables are the script's."""
        self._version: collections.Counter[int] = collections.Counter()
        self._known: dict[Step, dict[int, int]] = {}
        # Variables whose newest version the script lacks, with the step that has it.
        self._away: dict[int, Step] = {}
        # Variables that a step wrote last, with that step.
        self._written_by: dict[int, Step] = {}

    def written(self, step: Step, variables: Iterable[int]) -> None:
        """Records that a step has changed variables."""
        known = self._known.setdefault(step, {})
        for variable in variables:
            self._version[variable] += 1
            known[variable] = self._version[variable]
            self._away[variable] = self._written_by[variable] = step

    def away(self, variables: Collection[int] | None = None) -> dict[Step, set[int]]:
        """Returns the variables whose newest version the script lacks, by the step that has it.

        Args:
            variables: Ids to consider; None for all.
        """
        found: dict[Step, set[int]] = {}
        for variable in self._away if variables is None else self._away.keys() & variables:
            found.setdefault(self._away[variable], set()).add(variable)
        return found

    def came_home(self, variables: Iterable[int]) -> None:
        """Records that the script has received the newest version of variables."""
        for variable in variables:
            self._away.pop(variable, None)

    def changed_at_home(self, variables: Iterable[int]) -> None:
        """Records that the script, which has the newest version of variables, may have changed them."""
        for variable in variables:
            self._version[variable] += 1
            self._written_by.pop(variable, None)

    def missing(self, step: Step, variables: Iterable[int]) -> tuple[set[int], dict[Step, set[int]]]:
        """Returns the variables whose newest version a step lacks, and records that the step has it from now on.

        Args:
            step: The step.
            variables: Ids of the variables that it reads or writes.

        Returns:
            Variables to send from the script, and variables to copy from other steps.
        """
        known = self._known.setdefault(step, {})
        from_script: set[int] = set()
        from_steps: dict[Step, set[int]] = {}
        for variable in variables:
            version = self._version[variable]
            if known.get(variable) != version:
                known[variable] = version
                writer = self._written_by.get(variable)
                (from_script if writer is None else from_steps.setdefault(writer, set())).add(variable)
        return from_script, from_steps

    def forget_pool(self) -> None:
        """Records that the pool's values are lost, so the script's are the newest."""
        self._known.clear()
        self._away.clear()
        self._written_by.clear()
