"""Steps of eager loops: what `fdt.outline` has made functions of is traced and called as the script's own tf.functions are."""

import builtins
import contextlib
import dataclasses
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.capture.loop.observation import Observer
from fdt.capture.loop.pending import resolved
from fdt.capture.watching import Place, Watch
from fdt.errors import FdtError
from fdt.outline.rewriting import Site

# A step that reads numbers which change is traced so often before it is given up.
_MAX_TRACES = 16
_DATA, _UNKNOWN = object(), object()
# Of what TensorFlow says of a step that cannot be traced, so much is quoted.
_MAX_SAID = 200
# How numbers that change are given to a step, one way after the other: as what they are, as the type of most tensors, and as
# constants of a trace each.
_WAYS: tuple[dict[type, tf.DType], ...] = ({int: tf.int32, float: tf.float32}, {int: tf.float32, float: tf.float32}, {})


class Outlined:
    """See `fdt.outline.sites.Runner`."""

    def __init__(self, observer: Observer, is_on: Callable[[], bool]) -> None:
        """Has seen no step.

        Args:
            observer: Is told of graphs that train.
            is_on: Whether training that the script begins now is to be taken over.
        """
        self._observer, self._is_on = observer, is_on
        self._steps: dict[int, _Step] = {}

    def step(
        self, site: Site, function: Callable[..., Any], names: Mapping[str, Any], numbers: Sequence[Callable[[], Any]]
    ) -> dict[str, Any] | None:
        """See `fdt.outline.sites.Runner`."""
        if not tf.executing_eagerly() or not self._is_on():
            return None
        step = self._steps.setdefault(id(site), _Step(site, self._observer))
        if step.problem is None:
            try:
                return step.run(function, names, numbers)
            except _StaysError as error:
                step.problem = str(error)
        return None

    def problem(self, file: str, line: int) -> str | None:
        """See `fdt.outline.sites.Runner`."""
        found = (step for step in self._steps.values() if step.site.file == file)
        return next((s.problem for s in found if s.site.line <= line <= s.site.end_line and s.problem), None)


class _StaysError(Exception):
    """A step is no function of TensorFlow's."""


@dataclasses.dataclass
class _Traced:
    """A step for certain constants.

    Attributes:
        function: Of tensors.
        watch: What else its Python read.
        lifted: Where numbers are that are given to it behind its arguments.
        results: By name: what came out beside tensors, and where they are among it.
    """

    function: Any
    watch: Watch
    lifted: list[Place]
    results: dict[str, Any]


class _Step:
    """A place in the script."""

    def __init__(self, site: Site, observer: Observer) -> None:
        self.site, self._observer = site, observer
        self.problem: str | None = None
        self._traced: dict[Any, list[_Traced]] = {}
        self._num_traces = 0
        # Numbers among the leaves, by their places: what they were when they came first, and those that have changed since.
        self._numbers: dict[Any, Any] = {}
        self._changing: set[Any] = set()
        # The same of numbers that functions of the script find elsewhere.
        self._lifted: dict[Any, Place] = {}
        # As what numbers that change are given to the step: its place in _WAYS.
        self._way = 0
        # What of the script's expressions were no numbers when they were looked at.
        self._no_numbers: set[int] = set()
        # What constants are known by has to stay alive.
        self._kept: list[Any] = []

    def run(
        self, function: Callable[..., Any], names: Mapping[str, Any], numbers: Sequence[Callable[[], Any]]
    ) -> dict[str, Any]:
        given = {name: value for name in self.site.reads if (value := _found(name, names, function)) is not _UNKNOWN}
        given |= {name: None for name in self.site.reads if name not in given}
        parameters = function.__code__.co_varnames[: function.__code__.co_argcount]
        for place, compute in enumerate(numbers):
            given[parameters[len(self.site.reads) + place]] = self._number(place, compute)
        leaves = {(name, i): leaf for name, value in given.items() for i, leaf in enumerate(_leaves(value))}
        self._look_at_numbers(leaves)
        while True:
            try:
                traced, tensors = self._find(function, given, leaves)
                break
            except _StaysError:
                # Numbers may be needed in another form, or as they are.
                if self._way == len(_WAYS) - 1 or not (self._changing or self._lifted):
                    raise
                self._way += 1
        return self._results(traced, traced.function(*tensors), given)

    # ---- what it is given ---------------------------------------------------------------------------------------

    def _number(self, place: int, compute: Callable[[], Any]) -> Any:
        if place in self._no_numbers:
            return None
        try:
            value = compute()
        except Exception:  # the script's own expression: it may not be come to at all
            value = None
        is_computed = self.site.numbers[place]
        # What is computed of tensors belongs into the step: a tape may have to see it.
        if isinstance(value, bool | int | float | np.generic) or (not is_computed and _is_array(value)):
            return value
        self._no_numbers.add(place)
        return None

    def _look_at_numbers(self, leaves: Mapping[Any, Any]) -> None:
        for place, leaf in leaves.items():
            if type(leaf) in (int, float) and self._numbers.setdefault(place, leaf) != leaf:
                self._changing.add(place)

    def _as_data(self, leaf: Any, changes: bool) -> Any:
        """Returns a leaf as a tensor; None if it is a constant of the step."""
        if _is_array(leaf):
            return resolved(leaf)
        dtype = _WAYS[self._way].get(type(leaf)) if changes else None
        return None if dtype is None else tf.constant(leaf, dtype)

    # ---- tracing ------------------------------------------------------------------------------------------------

    def _find(
        self, function: Callable[..., Any], given: Mapping[str, Any], leaves: Mapping[Any, Any]
    ) -> tuple[_Traced, list[Any]]:
        data = {place: self._as_data(leaf, place in self._changing) for place, leaf in leaves.items()}
        constants = tuple(_DATA if data[place] is not None else _identity(leaf) for place, leaf in leaves.items())
        structure = tuple((name, repr(_structure(value))) for name, value in given.items())
        known = self._traced.setdefault((constants, structure), [])
        tensors = [value for value in data.values() if value is not None]
        changed: list[Place] = []
        for traced in known:
            changed = traced.watch.changed()
            if not changed:
                return traced, tensors + self._values(traced.lifted)
        self._lifted |= {place.key: place for place in changed if type(place.get()) in (int, float)}
        self._num_traces += 1
        if self._num_traces > _MAX_TRACES:
            raise _StaysError(f"its Python reads what changes from step to step ({_MAX_TRACES} traces)")
        known.append(self._trace(function, given, {p for p, value in data.items() if value is not None}, tensors))
        self._kept.append(given)
        return known[-1], tensors + self._values(known[-1].lifted)

    def _values(self, lifted: Sequence[Place]) -> list[Any]:
        return [self._as_data(place.get(), changes=True) for place in lifted]

    def _trace(
        self, function: Callable[..., Any], given: Mapping[str, Any], is_data: set[Any], tensors: Sequence[Any]
    ) -> _Traced:
        results: dict[str, Any] = {}
        lifted = [place for place in self._lifted.values() if type(place.get()) in _WAYS[self._way]]

        def step(*data: tf.Tensor) -> list[tf.Tensor]:
            values = iter(data)
            arguments = {}
            for name, value in given.items():
                leaves = [next(values) if (name, i) in is_data else leaf for i, leaf in enumerate(_leaves(value))]
                arguments[name] = _packed(value, leaves)
            with _filled(lifted, list(values)):
                after = function(**arguments)
            tensors_out: list[tf.Tensor] = []
            results.clear()
            results.update(self._taken(after, given, tensors_out))
            return tensors_out

        step.fdt_place = f"the step in lines {self.site.line} to {self.site.end_line}"  # type: ignore[attr-defined]
        traced = tf.function(step, autograph=False)
        watch = Watch({place.key for place in lifted})
        try:
            with watch.watching():
                concrete = traced.get_concrete_function(*tensors, *self._values(lifted))
        except FdtError:
            raise
        except Exception as error:  # the script's own code runs here
            raise _StaysError(_reason(error, self.site.file)) from None
        if watch.effects:
            raise _StaysError(watch.effects[0])
        # Gradients may be added up, and applied in later steps.
        self._observer.take_for_training(concrete.graph)
        return _Traced(traced, watch, lifted, results)

    def _taken(self, after: Mapping[str, Any], given: Mapping[str, Any], outputs: list[tf.Tensor]) -> dict[str, Any]:
        """Sorts out what a step has bound: tensors become its outputs."""
        known = {id(leaf) for value in given.values() for leaf in _leaves(value)}
        taken = {}
        for name in (*self.site.results, *self.site.changed):
            if name not in after:
                continue
            value = after[name]
            places: list[int | _Constant] = []
            for leaf in _leaves(value):
                if tf.is_tensor(leaf) and not isinstance(leaf, tf.Variable):
                    places.append(len(outputs))
                    outputs.append(leaf)
                else:
                    places.append(_Constant(leaf if _may_leave(leaf, known) else Spent(name, self.site)))
            taken[name] = (_structure(value), places)
        return taken

    # ---- what comes out -----------------------------------------------------------------------------------------

    def _results(self, traced: _Traced, outputs: Sequence[Any], given: Mapping[str, Any]) -> dict[str, Any]:
        results = {}
        for name, (structure, places) in traced.results.items():
            leaves = [place.value if isinstance(place, _Constant) else outputs[place] for place in places]
            value = _packed(structure, leaves)
            if (
                type(given.get(name)) in (int, float)
                and (name, 0) in self._numbers
                and not isinstance(value, int | float)
            ):
                # A number stays one.
                value = type(given[name])(resolved(value).numpy())
            if name in self.site.changed:
                _put_into(given[name], value)
            else:
                results[name] = value
        return results


@dataclasses.dataclass(frozen=True)
class _Constant:
    value: Any


class Spent:
    """Stands for what a step has made beside tensors, and left in a name: a tape, for example."""

    def __init__(self, name: str, site: Site) -> None:
        object.__setattr__(self, "_fdt_why", f"{name!r} was made by the step in lines {site.line} to {site.end_line}")

    def __getattr__(self, name: str) -> Any:
        """Raises.

        Raises:
            AttributeError: Always.
        """
        why = object.__getattribute__(self, "_fdt_why")
        raise AttributeError(f"{why}, which ran on the pool: {name!r} of it is not here. Use it inside the step.")


@contextlib.contextmanager
def _filled(places: Sequence[Place], values: Sequence[Any]) -> Iterator[None]:
    """Within it the script's functions find these values in these places."""
    before = [place.get() for place in places]
    for place, value in zip(places, values, strict=True):
        place.set(value)
    try:
        yield
    finally:
        for place, value in zip(places, before, strict=True):
            place.set(value)


def _found(name: str, names: Mapping[str, Any], function: Callable[..., Any]) -> Any:
    for scope in (names, function.__globals__, vars(builtins)):
        if name in scope:
            return scope[name]
    return _UNKNOWN


def _is_array(leaf: Any) -> bool:
    if isinstance(leaf, tf.Variable):
        return False
    return isinstance(leaf, tf.Tensor | tf.RaggedTensor | tf.SparseTensor | np.generic) or (
        isinstance(leaf, np.ndarray) and leaf.dtype != object
    )


def _leaves(value: Any) -> list[Any]:
    """Returns the leaves of lists, tuples and dicts; what else there is, is a leaf."""
    if type(value) is dict:
        return [leaf for item in value.values() for leaf in _leaves(item)]
    if type(value) in (list, tuple) or hasattr(value, "_fields"):
        return [leaf for item in value for leaf in _leaves(item)]
    return [value]


def _structure(value: Any) -> Any:
    """Returns a value with None for its leaves."""
    return _packed(value, [None] * len(_leaves(value)))


def _packed(structure: Any, leaves: Sequence[Any]) -> Any:
    """Returns leaves in the form of a value."""
    rest = iter(leaves)

    def pack(value: Any) -> Any:
        if type(value) is dict:
            return {name: pack(item) for name, item in value.items()}
        if type(value) in (list, tuple):
            return type(value)(pack(item) for item in value)
        if hasattr(value, "_fields"):
            return type(value)(*(pack(item) for item in value))
        return next(rest)

    return pack(structure)


def _put_into(container: Any, value: Any) -> None:
    """Gives a list or dict of the script's what a step has made of it."""
    if isinstance(container, list):
        container[:] = value
    else:
        container.update(value)


def _may_leave(leaf: Any, known: set[int]) -> bool:
    """Whether what a step was traced with is right for the script, too."""
    simple = leaf is None or isinstance(leaf, bool | int | float | str | bytes | tf.Variable | np.generic)
    return simple or id(leaf) in known


def _identity(leaf: Any) -> Any:
    if isinstance(leaf, str | bytes | bool | int | float | type(None)):
        return type(leaf), leaf
    return id(leaf)


def _reason(error: Exception, file: str) -> str:
    """Returns in which line of the script's file a step could not be traced, and what TensorFlow says of it, in a sentence."""
    lines = [f"line {frame.lineno}: " for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    said = " ".join(str(error).split()).split(". ")[0].rstrip(".")
    return f"{(lines or [''])[-1]}it cannot be traced ({type(error).__name__}: {said[:_MAX_SAID]})"
