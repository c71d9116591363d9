"""Runs the steps of eager loops, which `fdt.script.outline` has made functions."""

import builtins
import dataclasses
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.capture.contents import Contents
from fdt.capture.loop.attached import NAMES, attach, attached
from fdt.capture.loop.carried import Carried
from fdt.capture.loop.created import created_at_once
from fdt.capture.loop.elements import ElementTensor
from fdt.capture.loop.nests import leaves_of, packed, put_into, structure_of
from fdt.capture.loop.observation import Observer
from fdt.capture.loop.pending import resolved
from fdt.capture.loop.results import Kinds, Results
from fdt.capture.refusals import in_place
from fdt.capture.step import seeds
from fdt.capture.step.draws import Draws
from fdt.capture.step.unseen import unseen
from fdt.capture.watching import Place, Watch
from fdt.client.report import say
from fdt.errors import FdtError, UnsupportedError
from fdt.script.outline.rewriting import Site
from fdt.script.outline.sites import Runner

# Limit of traces for a step that reads changing values; beyond it the step is not outlined.
_MAX_TRACES = 16
_DATA, _UNKNOWN = object(), object()
_NUMBERS = (int, float)
# Kinds of numbers that may be computed again, since that draws no random numbers.
_REPEATABLE = ("computed", "looked up")
# Length of the longest drawn list that becomes an argument.
_MAX_DRAWN = 256
# Characters quoted of TensorFlow's error for a step that cannot be traced.
_MAX_SAID = 200
# TensorFlow's error for a function that makes variables when it is traced again.
_MAKES_VARIABLES = "tf.function only supports singleton tf.Variables"
# How changing numbers are passed to a step, tried in this order: as tensors of their own type, as tensors of the most common
# type, and as constants, each with a trace of its own.
_WAYS: tuple[dict[type, tf.DType], ...] = ({int: tf.int32, float: tf.float32}, {int: tf.float32, float: tf.float32}, {})


class Outlined(Runner):
    """Runs each step as a tf.function, or leaves it to the script with the reason."""

    def __init__(self, observer: Observer, is_on: Callable[[], bool]) -> None:
        """
        Args:
            observer: Receives graphs that train.
            is_on: Returns whether training that the script begins now is captured.
        """
        self._observer, self._is_on = observer, is_on
        self._steps: dict[int, _Step] = {}

    def step(
        self, site: Site, function: Callable[..., Any], names: Mapping[str, Any], numbers: Sequence[Callable[[], Any]]
    ) -> dict[str, Any] | None:
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
        found = (step for step in self._steps.values() if step.site.file == file)
        return next((s.problem for s in found if s.site.line <= line <= s.site.end_line and s.problem), None)


class _StaysError(Exception):
    """A step cannot be made a tf.function."""


class _SetsError(Exception):
    """A step changes a value that Python looks up or computes before the step."""


class _MakesVariablesError(Exception):
    """A step makes variables, which a tf.function can do in its first call only."""


@dataclasses.dataclass
class _Traced:
    """A step, traced for certain constants.

    Attributes:
        function: A tf.function of tensors.
        watch: What its Python read besides its arguments.
        lifted: Places of numbers and tensors that are passed after its arguments.
        num_seeds: Number of random operations; each takes a seed, passed after the lifted values.
        results: What it leaves in names and places.
        names: The names among these that it binds.
        changed: Names of lists and dicts that are changed in place.
        carried: Attributes and other names that it sets.
    """

    function: Any
    watch: Watch
    lifted: list[Place]
    num_seeds: int
    results: Results
    names: Sequence[str]
    changed: frozenset[str]
    carried: Carried


@dataclasses.dataclass(frozen=True)
class _Call:
    """The inputs of a step's trace.

    Attributes:
        function: The step.
        given: Values, by names of its parameters.
        data: The leaves of `given` that are tensors in the trace, by place.
        lifted: Places of numbers and tensors that are passed after its arguments.
        numbers: By name, functions that compute again the arguments which Python computed beforehand.
    """

    function: Callable[..., Any]
    given: Mapping[str, Any]
    data: Mapping[Any, Any]
    lifted: list[Place]
    numbers: Mapping[str, Callable[[], Any]]

    def argument(self, name: str, values: Iterator[Any]) -> Any:
        """Returns a parameter's argument; takes its tensors from `values`."""
        value = self.given[name]
        return packed(value, [_argument((name, i), leaf, values, self.data) for i, leaf in enumerate(leaves_of(value))])

    def set_by_step(self) -> set[str]:
        """Returns, at the end of the step, the names in `numbers` whose values have changed."""
        return {name for name, compute in self.numbers.items() if not _is_same(_computed(compute), self.given[name])}


class _Step:
    """The step at one place in the script."""

    def __init__(self, site: Site, observer: Observer) -> None:
        self.site, self._observer = site, observer
        self.problem: str | None = None
        self._traced: dict[Any, list[_Traced]] = {}
        self._num_traces = 0
        # Numbers among the leaves, by place: their first values, and the places whose value has changed since.
        self._numbers: dict[Any, Any] = {}
        self._changing: set[Any] = set()
        # Places outside the arguments whose numbers or arrays have changed.
        self._lifted: dict[Any, Place] = {}
        # By form of the arguments: which results are numbers, found by a trace in which all numbers are constants.
        self._kinds: dict[Any, Kinds] = {}
        # How changing numbers are passed to the step: an index of _WAYS.
        self._way = 0
        # Whether float64 arrays are passed as float32, as TensorFlow converts them beside float32 tensors: only if the step
        # cannot be traced otherwise.
        self._is_narrow = False
        # Whether arrays that the step makes by NumPy are made before it: only if it cannot be traced otherwise.
        self._has_arrays = False
        # Whether a call has run on this machine because it made variables.
        self._made_variables = False
        # Places of the script's expressions whose values were found to be no numbers.
        self._no_numbers: set[int] = set()
        # Keeps alive the objects whose ids identify constants.
        self._kept: list[Any] = []

    def run(
        self, function: Callable[..., Any], names: Mapping[str, Any], numbers: Sequence[Callable[[], Any]]
    ) -> dict[str, Any]:
        given = {name: value for name in self.site.reads if (value := _found(name, names, function)) is not _UNKNOWN}
        given |= {name: None for name in self.site.reads if name not in given}
        draws = Draws()
        try:
            given |= self._computed(function, numbers, draws)
            computing = self._computing(function, numbers, given)
            traced, tensors = self._find_in_some_way(_Call(function, given, {}, [], computing))
        except _MakesVariablesError:
            return self._run_here(function, given)
        except _SetsError:
            draws.undo()
            return self.run(function, names, numbers)
        except _StaysError:
            # The script will run the step, and draw, itself, unless the next attempt succeeds.
            draws.undo()
            if self._has_arrays or "array" not in self.site.numbers:
                raise
            self._has_arrays = True
            return self.run(function, names, numbers)
        return self._results(traced, traced.function(*tensors), given)

    def _run_here(self, function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """Runs a step as plain Python does; the next call finds the variables that it made."""
        if self._made_variables:
            raise _StaysError("it makes variables in more than its first call")
        self._made_variables = True
        lines = f"lines {self.site.line} to {self.site.end_line}"
        say(f"{self.site.file}: the step in {lines} makes variables, so its first call is made here")
        with in_place():
            after = function(**given)
        return {name: after[name] for name in self.site.results if name in after}

    def _find_in_some_way(self, call: _Call) -> tuple["_Traced", list[tf.Tensor]]:
        leaves: dict[Any, Any] = {}
        for name, value in call.given.items():
            for i, leaf in enumerate(leaves_of(value)):
                leaves[name, i] = leaf
                leaves |= {(name, i, attribute): other for attribute, other in attached(leaf).items()}
        self._look_at_numbers(leaves)
        while True:
            try:
                return self._find(call, leaves)
            except _StaysError:
                # The step may need numbers as another type, or as constants.
                if self._way < len(_WAYS) - 1 and (self._changing or self._lifted):
                    self._way += 1
                elif not self._is_narrow and any(map(_is_wide, leaves.values())):
                    self._way, self._is_narrow = 0, True
                else:
                    raise

    # ---- what it is given ---------------------------------------------------------------------------------------

    def _parameters(self, function: Callable[..., Any]) -> Sequence[str]:
        """Returns the parameters whose values Python computes before the step."""
        code = function.__code__
        return code.co_varnames[len(self.site.reads) : code.co_argcount]

    def _computed(
        self, function: Callable[..., Any], numbers: Sequence[Callable[[], Any]], draws: Draws
    ) -> dict[str, Any]:
        """Returns the values that Python computes before the step, by parameter."""
        values: list[Any] = []
        # Places of expressions that have a value, or are part of one that has.
        there: set[int] = set()
        for place, compute in enumerate(numbers):
            value = None if self.site.within[place] in there else self._number(place, compute, draws)
            values.append(value)
            if value is not None or self.site.within[place] in there:
                there.add(place)
        return dict(zip(self._parameters(function), values, strict=True))

    def _computing(
        self, function: Callable[..., Any], numbers: Sequence[Callable[[], Any]], given: Mapping[str, Any]
    ) -> dict[str, Callable[[], Any]]:
        """Returns, by parameter, the functions that compute given numbers without drawing random ones."""
        kinds = zip(self._parameters(function), numbers, self.site.numbers, strict=True)
        return {name: compute for name, compute, kind in kinds if kind in _REPEATABLE and given[name] is not None}

    def _number(self, place: int, compute: Callable[[], Any], draws: Draws) -> Any:
        kind = self.site.numbers[place]
        if place in self._no_numbers or (kind == "array" and not self._has_arrays):
            return None
        value = _computed(lambda: draws.draw(*compute()) if kind == "drawn" else compute())
        # A value computed from tensors belongs in the step: a tape may have to record it.
        if isinstance(value, bool | int | float | np.generic) or (kind == "looked up" and _is_array(value)):
            return value
        if kind in ("drawn", "array") and _is_plain(value):
            return value
        if kind == "drawn":
            draws.undo_last()
        self._no_numbers.add(place)
        return None

    def _look_at_numbers(self, leaves: Mapping[Any, Any]) -> None:
        for place, leaf in leaves.items():
            if type(leaf) in _NUMBERS and self._numbers.setdefault(place, leaf) != leaf:
                self._changing.add(place)

    def _as_data(self, leaf: Any, changes: bool) -> Any:
        """Returns a leaf as a tensor; None if it is a constant of the step."""
        if _is_array(leaf):
            if self._is_narrow and _is_wide(leaf):
                return tf.constant(leaf, tf.float32)
            return leaf if isinstance(leaf, ElementTensor) else resolved(leaf)
        dtype = _WAYS[self._way].get(type(leaf)) if changes else None
        return None if dtype is None else tf.constant(leaf, dtype)

    # ---- tracing ------------------------------------------------------------------------------------------------

    def _find(self, call: _Call, leaves: Mapping[Any, Any]) -> tuple[_Traced, list[Any]]:
        tensors = {place: self._as_data(leaf, place in self._changing) for place, leaf in leaves.items()}
        data = {place: tensor for place, tensor in tensors.items() if tensor is not None}
        constants = tuple(_DATA if place in data else _identity(leaf) for place, leaf in leaves.items())
        structure = tuple((name, repr(structure_of(value))) for name, value in call.given.items())
        known = self._traced.setdefault((constants, structure, seeds.is_seeded()), [])
        changed: list[Place] = []
        for traced in known:
            changed = traced.watch.changed()
            if not changed:
                return traced, [*data.values(), *self._beside(traced)]
        self._lifted |= {p.key: p for p in changed if type(p.get()) in _NUMBERS or _is_array(p.get())}
        self._num_traces += 1
        if self._num_traces > _MAX_TRACES:
            raise _StaysError(f"its Python reads what changes from step to step ({_MAX_TRACES} traces)")
        lifted = [place for place in self._lifted.values() if self._as_data(place.get(), changes=True) is not None]
        numbers = {place for place, leaf in leaves.items() if type(leaf) in _NUMBERS}
        form = tuple(type(leaves[p]) if p in numbers else c for p, c in zip(leaves, constants, strict=True)), structure
        traced = self._trace_as_python(dataclasses.replace(call, data=data, lifted=lifted), numbers, form)
        known.append(traced)
        self._kept.append(call.given)
        return traced, [*data.values(), *self._beside(traced)]

    def _trace_as_python(self, call: _Call, numbers: set[Any], form: Any) -> _Traced:
        """Traces a step so that its results are numbers where plain Python's are.

        Args:
            call: The step.
            numbers: Places of leaves that are numbers.
            form: Key of the kinds of its arguments.
        """
        gives_numbers = bool(call.lifted) or bool(numbers & call.data.keys())
        if gives_numbers and form not in self._kinds:
            data = {place: tensor for place, tensor in call.data.items() if place not in numbers}
            self._kinds[form] = self._trace(dataclasses.replace(call, data=data, lifted=[]), {}).results.kinds
        traced = self._trace(call, self._kinds[form] if gives_numbers else {})
        if not gives_numbers:
            self._kinds.setdefault(form, traced.results.kinds)
        if traced.num_seeds:
            # It draws random numbers, and is traced again with their seeds.
            return self._trace(call, self._kinds[form], traced.num_seeds)
        return traced

    def _beside(self, traced: _Traced) -> list[Any]:
        """Returns the values that are passed to a step after its arguments."""
        return [*self._values(traced.lifted), *seeds.drawn(traced.num_seeds)]

    def _values(self, lifted: Sequence[Place]) -> list[Any]:
        return [self._as_data(place.get(), changes=True) for place in lifted]

    def _trace(self, call: _Call, kinds: Kinds, num_seeds: int = 0) -> _Traced:
        results, names = Results(self.site, set(), {}), list[str]()
        num_taken, changed, stale = 0, list[str](), set[str]()
        watch = Watch({place.key for place in call.lifted})
        carried = Carried(watch, leaves_of)

        def step(*tensors: tf.Tensor) -> list[tf.Tensor]:
            nonlocal num_taken, results
            values = iter(tensors[: len(call.data)])
            beside = tensors[len(call.data) :]
            of_lifted, of_seeds = beside[: len(call.lifted)], beside[len(call.lifted) :]
            arguments = {name: call.argument(name, values) for name in call.given}
            own_seeds = seeds.Seeds(of_seeds)
            contents = {n: Contents(v) for n, v in arguments.items() if Contents.are_in(v) or type(v) is tuple}

            def run() -> dict[str, Any]:
                bound = call.function(**arguments)
                stale.update(call.set_by_step())
                return dict(bound)

            with own_seeds.taken(), unseen(), created_at_once():
                after, values_set = carried.traced(run, call.lifted, of_lifted)
            num_taken = own_seeds.count
            changed[:] = [name for name, before in contents.items() if not before.are_as_before()]
            for name in changed:
                self._check_changed(name, arguments[name], contents[name])
            names[:] = [name for name in self.site.results if name in after and not _is_kept(name, after, arguments)]
            given = {id(leaf) for value in call.given.values() for leaf in leaves_of(value)}
            results = Results(self.site, given, kinds)
            bound = {name: after[name] for name in names}
            in_place = {_content_of(name): arguments[name] for name in changed}
            for key, value in (bound | in_place | values_set).items():
                results.add(key, value)
            return results.tensors

        step.fdt_place = f"the step in lines {self.site.line} to {self.site.end_line}"  # type: ignore[attr-defined]
        traced = tf.function(step, autograph=False)
        of_seeds = [tf.TensorSpec([], tf.int64)] * (num_seeds + 1 if num_seeds else 0)
        try:
            with watch.watching():
                concrete = traced.get_concrete_function(*call.data.values(), *self._values(call.lifted), *of_seeds)
        except FdtError:
            raise
        except Exception as error:  # the script's own code runs here
            if _MAKES_VARIABLES in str(error):
                raise _MakesVariablesError from None
            raise _StaysError(_reason(error, self.site.file)) from None
        if stale:
            parameters = self._parameters(call.function)
            self._no_numbers |= {parameters.index(name) for name in stale}
            raise _SetsError
        if watch.taken is not None:
            # The element that the trace took is lost, so plain Python cannot run the step either.
            raise UnsupportedError(
                f"{self.site.file}: the step in lines {self.site.line} to {self.site.end_line} cannot be outlined: "
                f"{watch.taken}. Take it before the step, in a statement of the loop itself: batch = next(batches)."
            )
        if watch.effects:
            raise _StaysError(watch.effects[0])
        # Gradients may be added up, and applied in later steps.
        self._observer.take_for_training(concrete.graph)
        return _Traced(traced, watch, call.lifted, num_taken, results, names, frozenset(changed), carried)

    def _check_changed(self, name: str, value: Any, before: Contents) -> None:
        """Refuses an object that the step has changed in place, unless every step can change it so.

        Raises:
            _StaysError: The object is neither a list nor a dict.
        """
        if type(value) not in (list, dict):
            before.restore()
            raise _StaysError(f"it changes {name}")

    # ---- what comes out -----------------------------------------------------------------------------------------

    def _results(self, traced: _Traced, outputs: Sequence[Any], given: Mapping[str, Any]) -> dict[str, Any]:
        results = {name: traced.results.of(name, outputs) for name in traced.names}
        for name in traced.changed:
            put_into(given[name], traced.results.of(_content_of(name), outputs))
        traced.carried.set(lambda key: traced.results.of(key, outputs))
        return results


def _content_of(name: str) -> Any:
    """Returns the key of the new content of a list or dict that the step was given."""
    return "content", name


def _is_kept(name: str, after: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    """Whether a name is still bound to the list or dict that the step was given: a step can change this one only in place."""
    return type(after[name]) in (list, dict) and after[name] is given.get(name)


def _argument(place: tuple[str, int], leaf: Any, values: Iterator[Any], data: Mapping[Any, Any]) -> Any:
    """Returns a leaf as the trace sees it: a tensor from `values`, or the leaf itself."""
    if place not in data:
        return leaf
    tensor = next(values)
    return attach(tensor, {name: next(values) for name in NAMES if (*place, name) in data})


def _computed(compute: Callable[[], Any]) -> Any:
    """Returns the value of a script's expression; None if it raises, since the step may never evaluate it."""
    try:
        return compute()
    except Exception:  # the script's own
        return None


def _is_same(one: Any, other: Any) -> bool:
    is_number = type(one) is type(other) and isinstance(one, bool | int | float | np.generic)
    return one is other or (is_number and bool(one == other))


def _found(name: str, names: Mapping[str, Any], function: Callable[..., Any]) -> Any:
    for scope in (names, function.__globals__, vars(builtins)):
        if name in scope:
            return scope[name]
    return _UNKNOWN


def _is_plain(value: Any) -> bool:
    """Whether a value is an array, or a short list of arrays and numbers."""
    if isinstance(value, np.ndarray):
        return value.dtype != object
    is_short = isinstance(value, list | tuple) and 0 < len(value) <= _MAX_DRAWN
    return is_short and all(isinstance(item, bool | int | float | np.generic) or _is_plain(item) for item in value)


def _is_array(leaf: Any) -> bool:
    if isinstance(leaf, tf.Variable):
        return False
    return isinstance(leaf, tf.Tensor | tf.RaggedTensor | tf.SparseTensor | np.generic) or (
        isinstance(leaf, np.ndarray) and leaf.dtype != object
    )


def _is_wide(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray | np.generic) and leaf.dtype == np.float64


def _identity(leaf: Any) -> Any:
    if isinstance(leaf, str | bytes | bool | int | float | type(None)):
        return type(leaf), leaf
    return id(leaf)


def _reason(error: Exception, file: str) -> str:
    """Returns, in a sentence, the script's line at which a step could not be traced, and TensorFlow's reason."""
    lines = [f"line {frame.lineno}: " for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    said = " ".join(str(error).split()).split(". ")[0].rstrip(".")
    return f"{(lines or [''])[-1]}it cannot be traced ({type(error).__name__}: {said[:_MAX_SAID]})"
