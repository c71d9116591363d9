"""Records where each variable's newest value is: with the script, or with one of its steps on the pool."""

import collections
from collections.abc import Collection, Hashable, Iterable
from typing import Generic, TypeVar

Step = TypeVar("Step", bound=Hashable)


class VariableVersions(Generic[Step]):
    """Which version of each variable the script has, and each of its steps on the pool; variables are named by ids.

    A version is made by a step that writes the variable, and by the script when it may have done so. Who wants to read a
    variable needs its newest version: `missing` tells from whom, `away` what the script itself lacks.
    """

    def __init__(self) -> None:
        """All variables are the script's."""
        self._version: collections.Counter[int] = collections.Counter()
        self._known: dict[Step, dict[int, int]] = {}
        # Those that the script does not have, and the step that does.
        self._away: dict[int, Step] = {}
        # Those that a step wrote last.
        self._written_by: dict[int, Step] = {}

    def written(self, step: Step, variables: Iterable[int]) -> None:
        """A step has changed variables."""
        known = self._known.setdefault(step, {})
        for variable in variables:
            self._version[variable] += 1
            known[variable] = self._version[variable]
            self._away[variable] = self._written_by[variable] = step

    def away(self, variables: Collection[int] | None = None) -> dict[Step, set[int]]:
        """Returns which variables the script has not got in their newest version, by the step that has.

        Args:
            variables: To look at; None for all.
        """
        found: dict[Step, set[int]] = {}
        for variable in self._away if variables is None else self._away.keys() & variables:
            found.setdefault(self._away[variable], set()).add(variable)
        return found

    def came_home(self, variables: Iterable[int]) -> None:
        """The script has got the newest version of variables."""
        for variable in variables:
            self._away.pop(variable, None)

    def changed_at_home(self, variables: Iterable[int]) -> None:
        """The script, which has the newest version of variables, may have changed them."""
        for variable in variables:
            self._version[variable] += 1
            self._written_by.pop(variable, None)

    def missing(self, step: Step, variables: Iterable[int]) -> tuple[set[int], dict[Step, set[int]]]:
        """Returns of which variables a step has not got the newest version; from then on it counts as having it.

        Args:
            step: It.
            variables: What it reads or writes.

        Returns:
            Those that the script has to give, and those that other steps have to.
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
        """What the script has is what there is: the pool's values are lost."""
        self._known.clear()
        self._away.clear()
        self._written_by.clear()
