"""Runs the steps of eager loops, which `fdt.script.outline` has made functions."""

import builtins
import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.capture.loop.attached import attached
from fdt.capture.loop.elements import ElementTensor
from fdt.capture.loop.nests import leaves_of, put_into, structure_of
from fdt.capture.loop.observation import Observer
from fdt.capture.loop.outlined_trace import (
    Call,
    DrawsError,
    FirstCallError,
    OneSizeError,
    SetsError,
    StaysError,
    Traced,
    TracesFunctionError,
    content_of,
    trace,
    value_or_none,
)
from fdt.capture.loop.pending import resolved
from fdt.capture.loop.results import Kinds
from fdt.capture.places import Argument, Place, is_plain_object
from fdt.capture.refusals import in_place
from fdt.capture.step import seeds
from fdt.capture.step.draws import Draws, restore, states
from fdt.capture.step.writes import draws_of_its_own
from fdt.client.report import say
from fdt.script.outline.rewriting import Site
from fdt.script.outline.sites import Runner

# A step that reads changing values is traced so often, and once more for so many calls; beyond it the step is not outlined.
# Loops with objects of their own for each epoch, such as metrics, need a trace for each epoch.
_MAX_TRACES, _CALLS_PER_TRACE = 16, 3
# The most traces that a step keeps.
_MAX_KEPT = 16
# How often a step is traced while random numbers are drawn, perhaps by another thread.
_TRACES_WITH_DRAWS = 3
_DATA, _UNKNOWN = object(), object()
_NUMBERS = (int, float)
# Kinds of numbers that may be computed again, since that draws no random numbers.
_REPEATABLE = ("computed", "looked up")
# Length of the longest drawn list that becomes an argument.
_MAX_DRAWN = 256
# How changing numbers are passed to a step, tried in this order: as tensors of their own type, as tensors of the most common
# type, and as constants, each with a trace of its own.
_WAYS: tuple[dict[type, tf.DType], ...] = ({int: tf.int32, float: tf.float32}, {int: tf.float32, float: tf.float32}, {})


class Outlined(Runner):
    """Runs each step as a tf.function, or leaves it to the script with the reason."""

    def __init__(self, observer: Observer, is_on: Callable[[], bool], drop: Callable[[Any], None]) -> None:
        """
        Args:
            observer: Receives graphs that train.
            is_on: Returns whether training that the script begins now is captured.
            drop: Called with a tf.function that will not be called any more.
        """
        self._observer, self._is_on, self._drop = observer, is_on, drop
        self._steps: dict[int, _Step] = {}
        # Threads of the script's take turns: a trace sets what the script's Python reads, and takes back what it has changed.
        self._turn = threading.RLock()

    def step(
        self, site: Site, function: Callable[..., Any], names: Mapping[str, Any], numbers: Sequence[Callable[[], Any]]
    ) -> dict[str, Any] | None:
        if not tf.executing_eagerly() or not self._is_on():
            return None
        with self._turn:
            step = self._steps.get(id(site))
            if step is None:
                step = self._steps[id(site)] = _Step(site, self._observer, self._drop)
            if step.problem is None:
                try:
                    return step.run(function, names, numbers)
                except StaysError as error:
                    step.problem = str(error)
        return None

    def problem(self, file: str, line: int) -> str | None:
        found = [step for step in list(self._steps.values()) if step.site.file == file]
        return next((s.problem for s in found if s.site.line <= line <= s.site.end_line and s.problem), None)


class _Step:
    """The step at one place in the script."""

    def __init__(self, site: Site, observer: Observer, drop: Callable[[Any], None]) -> None:
        self.site, self._observer, self._drop = site, observer, drop
        self.problem: str | None = None
        # By what identifies the constants of a trace, the last used at the end; each with the objects whose ids identify them.
        self._traced: dict[Any, tuple[list[Traced], list[Any]]] = {}
        self._num_calls = self._num_traces = 0
        # Numbers among the leaves, by place: their first values, and the places whose value has changed since.
        self._numbers: dict[Any, Any] = {}
        self._changing: set[Any] = set()
        # Objects of the script's among the leaves, by place: the first ones, the places at which another one was found since,
        # and those of the call that is made now.
        self._objects: dict[Any, Any] = {}
        self._replaced: set[Any] = set()
        self._now: dict[Any, Any] = {}
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
        # Whether each size of its data has a trace of its own: only if its Python has other effects for some.
        self._is_of_sizes = False
        # Whether it was said that the step draws other numbers.
        self._has_told = False
        # Why calls have run on this machine.
        self._ran_here: set[str] = set()
        # Places of the script's expressions whose values were found to be no numbers.
        self._no_numbers: set[int] = set()

    def run(
        self, function: Callable[..., Any], names: Mapping[str, Any], numbers: Sequence[Callable[[], Any]]
    ) -> dict[str, Any]:
        given = {name: value for name in self.site.reads if (value := _found(name, names, function)) is not _UNKNOWN}
        given |= {name: None for name in self.site.reads if name not in given}
        draws = Draws()
        try:
            given |= self._computed(function, numbers, draws)
            computing = self._computing(function, numbers, given)
            traced, tensors = self._find_in_some_way(Call(function, given, {}, [], computing))
        except FirstCallError as error:
            if str(error) in self._ran_here and not isinstance(error, TracesFunctionError):
                raise StaysError(error.again) from None
            return self._run_here(function, given, str(error))
        except SetsError as error:
            parameters = self._parameters(function)
            self._no_numbers |= {parameters.index(name) for name in error.names}
            draws.undo()
            return self.run(function, names, numbers)
        except StaysError:
            # The script will run the step, and draw, itself, unless the next attempt succeeds.
            draws.undo()
            if self._has_arrays or "array" not in self.site.numbers:
                raise
            self._has_arrays = True
            return self.run(function, names, numbers)
        try:
            outputs = traced.function(*tensors)
        except OneSizeError as error:
            draws.undo()
            if self._is_of_sizes:
                raise StaysError(str(error)) from None
            self._is_of_sizes = True
            return self.run(function, names, numbers)
        return self._results(traced, outputs, given)

    def _run_here(self, function: Callable[..., Any], given: Mapping[str, Any], reason: str) -> dict[str, Any]:
        """Runs a step as plain Python does; the next call finds the variables that it made, or traced functions."""
        if reason not in self._ran_here:
            lines = f"lines {self.site.line} to {self.site.end_line}"
            say(f"{self.site.file}: the step in {lines} {reason}, so its first call is made here")
        self._ran_here.add(reason)
        with in_place():
            after = function(**given)
        return {name: after[name] for name in self.site.results if name in after}

    def _find_in_some_way(self, call: Call) -> tuple[Traced, list[tf.Tensor]]:
        leaves: dict[Any, Any] = {}
        for name, value in call.given.items():
            for i, leaf in enumerate(leaves_of(value)):
                leaves[name, i] = leaf
                leaves |= {(name, i, attribute): other for attribute, other in attached(leaf).items()}
        self._look_at_leaves(leaves)
        while True:
            try:
                return self._find(call, leaves)
            except StaysError:
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
        value = value_or_none(lambda: draws.draw(*compute()) if kind == "drawn" else compute())
        # A value computed from tensors belongs in the step: a tape may have to record it.
        if isinstance(value, bool | int | float | np.generic) or (kind == "looked up" and _is_array(value)):
            return value
        if kind in ("drawn", "array") and _is_plain(value):
            return value
        if kind == "drawn":
            draws.undo_last()
        self._no_numbers.add(place)
        return None

    def _look_at_leaves(self, leaves: Mapping[Any, Any]) -> None:
        for place, leaf in leaves.items():
            if type(leaf) in _NUMBERS and self._numbers.setdefault(place, leaf) != leaf:
                self._changing.add(place)
            elif is_plain_object(leaf) and self._objects.setdefault(place, leaf) is not leaf:
                self._replaced.add(place)
        self._now.clear()
        self._now |= {place: leaves[place] for place in self._replaced & leaves.keys()}

    def _as_data(self, leaf: Any, changes: bool) -> Any:
        """Returns a leaf as a tensor; None if it is a constant of the step."""
        if _is_array(leaf):
            if self._is_narrow and _is_wide(leaf):
                return tf.constant(leaf, tf.float32)
            return leaf if isinstance(leaf, ElementTensor) else resolved(leaf)
        dtype = _WAYS[self._way].get(type(leaf)) if changes else None
        return None if dtype is None else tf.constant(leaf, dtype)

    # ---- tracing ------------------------------------------------------------------------------------------------

    def _find(self, call: Call, leaves: Mapping[Any, Any]) -> tuple[Traced, list[Any]]:
        self._num_calls += 1
        tensors = {place: self._as_data(leaf, place in self._changing) for place, leaf in leaves.items()}
        data = {place: tensor for place, tensor in tensors.items() if tensor is not None}
        constants = tuple(_DATA if p in data else _identity(leaf, p in self._replaced) for p, leaf in leaves.items())
        structure = tuple((name, repr(structure_of(value))) for name, value in call.given.items())
        sizes = repr([tensor.shape for tensor in data.values()]) if self._is_of_sizes else ""
        key = constants, structure, seeds.is_seeded(), sizes
        known, kept = self._traced[key] = self._traced.pop(key, ([], []))
        changed: list[Place] = []
        for traced in known:
            changed = traced.watch.changed()
            if not changed:
                return traced, [*data.values(), *self._beside(traced)]
        self._lifted |= {p.key: p for p in changed if type(p.get()) in _NUMBERS or _is_array(p.get())}
        self._num_traces += 1
        if self._num_traces > _MAX_TRACES + self._num_calls // _CALLS_PER_TRACE:
            raise StaysError(f"its Python reads what changes from step to step ({self._num_traces - 1} traces)")
        lifted = [place for place in self._lifted.values() if self._as_data(place.get(), changes=True) is not None]
        numbers = {place for place, leaf in leaves.items() if type(leaf) in _NUMBERS}
        kinds = tuple(type(leaves[p]) if p in numbers else c for p, c in zip(leaves, constants, strict=True))
        form = kinds, structure, sizes
        replaced = {id(leaf): Argument(self._now, place) for place, leaf in self._now.items()}
        call = dataclasses.replace(call, data=data, lifted=lifted, replaced=replaced, is_of_sizes=self._is_of_sizes)
        drawn = states()
        try:
            traced = self._trace_as_python(call, numbers, form)
        except FirstCallError:
            # Initial values are drawn again.
            restore(drawn)
            raise
        self._tell_of_draws(traced)
        known.append(traced)
        kept.append(call.given)
        self._drop_old(known)
        return traced, [*data.values(), *self._beside(traced)]

    def _tell_of_draws(self, traced: Traced) -> None:
        """Says once which random operations of the step draw other numbers than plain python's."""
        drawing = draws_of_its_own(traced.graph)
        if drawing and not self._has_told:
            say(
                f"warning: {self.site.file}: the step in lines {self.site.line} to {self.site.end_line} draws by "
                f"{' and '.join(drawing)}, and so other numbers than in plain python, from the same distribution"
            )
            self._has_told = True

    def _drop_old(self, known: list[Traced]) -> None:
        """Forgets the traces that were not used for longest, of all and of those in a list."""
        dropped = known[:-_MAX_KEPT]
        del known[:-_MAX_KEPT]
        for key in list(self._traced)[:-_MAX_KEPT]:
            dropped += self._traced.pop(key)[0]
        for traced in dropped:
            self._drop(traced.function)

    def _trace_as_python(self, call: Call, numbers: set[Any], form: Any) -> Traced:
        """Traces a step so that a result is a number wherever plain Python would return a number.

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

    def _trace(self, call: Call, kinds: Kinds, num_seeds: int = 0) -> Traced:
        traced = self._traced_quietly(
            lambda: trace(self.site, call, lambda: self._values(call.lifted), kinds, num_seeds)
        )
        # Gradients may be added up, and applied in later steps.
        self._observer.take_for_training(traced.graph)
        return traced

    def _traced_quietly(self, trace: Callable[[], Traced]) -> Traced:
        """Returns a trace during which no other thread drew random numbers: pipelines do until they are far enough ahead."""
        first: DrawsError | None = None
        for _ in range(_TRACES_WITH_DRAWS):
            try:
                return trace()
            except DrawsError as error:
                first = first or error
        assert first is not None
        first.watch.take_back_draws()
        raise first

    def _beside(self, traced: Traced) -> list[Any]:
        """Returns the values that are passed to a step after its arguments."""
        return [*self._values(traced.lifted), *seeds.drawn(traced.num_seeds)]

    def _values(self, lifted: Sequence[Place]) -> list[Any]:
        return [self._as_data(place.get(), changes=True) for place in lifted]

    # ---- what comes out -----------------------------------------------------------------------------------------

    def _results(self, traced: Traced, outputs: Sequence[Any], given: Mapping[str, Any]) -> dict[str, Any]:
        results = {name: traced.results.of(name, outputs) for name in traced.names}
        for name in traced.changed:
            put_into(given[name], traced.results.of(content_of(name), outputs))
        traced.carried.set(lambda key: traced.results.of(key, outputs))
        return results


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


def _identity(leaf: Any, is_replaced: bool) -> Any:
    """Returns what identifies a constant of a trace; of one that each call has another of, its class."""
    if is_replaced and is_plain_object(leaf):
        return "object", type(leaf)
    if isinstance(leaf, str | bytes | bool | int | float | type(None)):
        return type(leaf), leaf
    return id(leaf)
