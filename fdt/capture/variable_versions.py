"""Records where each variable's newest value is: with the script, or with one of its steps on the pool."""

import weakref
from collections.abc import Collection, Hashable, Iterable
from typing import Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

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
        self._version: dict[int, int] = {}
        # The number of the newest version of any variable.
        self._newest = 0
        self._known: WeakKeyDictionary[Step, dict[int, int]] = WeakKeyDictionary()
        # Variables whose newest version the script lacks, with the step that has it.
        self._away: dict[int, Step] = {}
        # Variables that a step has written, with the last such step; and those that the script may have changed since.
        self._written_by: dict[int, weakref.ref[Step]] = {}
        self._maybe_changed: set[int] = set()

    def written(self, step: Step, variables: Iterable[int]) -> None:
        """Records that a step has changed variables."""
        # A model has a thousand variables, and this is called for each step: no loop in Python.
        versions = self._next_version(variables)
        self._known.setdefault(step, {}).update(versions)
        self._away.update(dict.fromkeys(versions, step))
        self._written_by.update(dict.fromkeys(versions, weakref.ref(step)))
        self._maybe_changed -= versions.keys()

    def _next_version(self, variables: Iterable[int]) -> dict[int, int]:
        self._newest += 1
        versions = dict.fromkeys(variables, self._newest)
        self._version.update(versions)
        return versions

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
        self._maybe_changed |= self._next_version(variables).keys()

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
            version = self._version.setdefault(variable, 0)
            if known.get(variable) == version:
                continue
            known[variable] = version
            reference, is_changed = self._written_by.get(variable), variable in self._maybe_changed
            writer = None if reference is None else reference()
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
