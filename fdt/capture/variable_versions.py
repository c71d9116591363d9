"""Records where each variable's newest value is: with the script, or with one of its steps on the pool."""

import collections
from collections.abc import Collection, Hashable, Iterable
from typing import Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

Step = TypeVar("Step", bound=Hashable)


class Missing(NamedTuple, Generic[Step]):
    """What a step lacks.

    Attributes:
        from_script: Variables to send from the script.
        from_steps: Variables to copy from the steps that wrote them last.
        maybe_changed: Those of `from_steps` that the script may have changed since: first their step needs the script's values.
    """

    from_script: set[int]
    from_steps: dict[Step, set[int]]
    maybe_changed: set[int]


class VariableVersions(Generic[Step]):
    """Which version of each variable the script has, and each of its steps on the pool; variables are named by ids.

    A step that writes a variable makes a new version, and so does the script when it may have written it. A reader needs the
    newest version: `missing` returns what a step lacks and from where to send it, `away` what the script lacks. A step that
    nobody else uses is forgotten, unless it has a newest version.
    """

    def __init__(self) -> None:
        """All variables are the script's."""
        self._version: collections.Counter[int] = collections.Counter()
        self._known: WeakKeyDictionary[Step, dict[int, int]] = WeakKeyDictionary()
        # Variables whose newest version the script lacks, with the step that has it.
        self._away: dict[int, Step] = {}
        # Variables that a step has written, with the last such step; and those that the script may have changed since.
        self._written_by: WeakValueDictionary[int, Step] = WeakValueDictionary()
        self._maybe_changed: set[int] = set()

    def written(self, step: Step, variables: Iterable[int]) -> None:
        """Records that a step has changed variables."""
        known = self._known.setdefault(step, {})
        for variable in variables:
            self._version[variable] += 1
            known[variable] = self._version[variable]
            self._away[variable] = self._written_by[variable] = step
            self._maybe_changed.discard(variable)

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
            self._maybe_changed.add(variable)

    def missing(self, step: Step, variables: Iterable[int], small: Collection[int] = ()) -> Missing[Step]:
        """Returns the variables whose newest version a step lacks, and records that the step has it from now on.

        Args:
            step: The step.
            variables: Ids of the variables that it reads or writes.
            small: Those that are sent from the script, if that has the newest version, though a step may have the same value.
        """
        known = self._known.setdefault(step, {})
        found: Missing[Step] = Missing(set(), {}, set())
        for variable in variables:
            version = self._version[variable]
            if known.get(variable) == version:
                continue
            known[variable] = version
            writer, is_changed = self._written_by.get(variable), variable in self._maybe_changed
            if writer is None or writer is step or (is_changed and variable in small):
                found.from_script.add(variable)
                continue
            found.from_steps.setdefault(writer, set()).add(variable)
            if is_changed:
                found.maybe_changed.add(variable)
                self._known[writer][variable] = version
        return found

    def forget_pool(self) -> None:
        """Records that the pool's values are lost, so the script's are the newest."""
        self._known.clear()
        self._away.clear()
        self._written_by.clear()
        self._maybe_changed.clear()
