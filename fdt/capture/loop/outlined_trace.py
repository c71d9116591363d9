"""Traces a step of an eager loop, which `fdt.script.outline` has made a function, as a tf.function of tensors."""

import contextlib
import dataclasses
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.capture.contents import Contents
from fdt.capture.loop.attached import attach
from fdt.capture.loop.carried import Carried
from fdt.capture.loop.created import created_at_once
from fdt.capture.loop.nests import leaves_of, packed
from fdt.capture.loop.results import Kinds, Results
from fdt.capture.places import Argument, Place
from fdt.capture.step import seeds
from fdt.capture.step.conversion import ATTACHED
from fdt.capture.step.eager import eager
from fdt.capture.step.unseen import unseen
from fdt.capture.traces import forget, named
from fdt.capture.watching import Watch
from fdt.errors import FdtError, UnsupportedError
from fdt.script.outline.rewriting import Site

# Characters quoted of TensorFlow's error for a step that cannot be traced.
_MAX_SAID = 200
# TensorFlow's error for a function that makes variables when it is traced again.
_MAKES_VARIABLES = "tf.function only supports singleton tf.Variables"


class StaysError(Exception):
    """A step cannot be made a tf.function."""


class DrawsError(StaysError):
    """Random numbers were drawn in Python while a step was traced: by the step, or by another thread in the meantime."""

    def __init__(self, watch: Watch) -> None:
        super().__init__("it draws random numbers in Python")
        self.watch = watch


class SetsError(Exception):
    """A step changes values that Python looks up or computes before the step.

    Attributes:
        names: The parameters that get them.
    """

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(*names)
        self.names = names


class OneSizeError(Exception):
    """A step does in Python, for a batch of another size than it was traced for, what it does not do for that."""


class FirstCallError(Exception):
    """A call of a step does what later ones do not, so plain Python has to make it.

    Attributes:
        again: Why the step stays with plain Python if another call does it too.
    """

    def __init__(self, does: str, again: str | None = None) -> None:
        super().__init__(does)
        self.again = f"it {does} in more than its first call" if again is None else again


class MakesVariablesError(FirstCallError):
    """A step makes variables, which a tf.function can do in its first call only."""

    def __init__(self) -> None:
        super().__init__("makes variables")


class TracesFunctionError(FirstCallError):
    """A step has a tf.function traced that changes the script's objects, in its trace alone."""

    def __init__(self, function: Any) -> None:
        super().__init__(f"has {named(function)} traced, which then changes objects of the script")


class ChangesError(FirstCallError):
    """A step changes objects of the script in place, perhaps in one call alone."""

    def __init__(self, change: str) -> None:
        super().__init__(f"may keep what later calls use ({change})", change)


@dataclasses.dataclass
class Traced:
    """A step, traced for certain constants.

    Attributes:
        function: A tf.function of tensors.
        graph: The graph of its trace.
        watch: What its Python read besides its arguments.
        lifted: Places of numbers and tensors that are passed after its arguments.
        num_seeds: Number of random operations; each takes a seed, passed after the lifted values.
        results: What it leaves in names and places.
        names: The names among these that it binds.
        changed: Names of lists and dicts that are changed in place.
        carried: Attributes and other names that it sets.
    """

    function: Any
    graph: tf.Graph
    watch: Watch
    lifted: list[Place]
    num_seeds: int
    results: Results
    names: Sequence[str]
    changed: frozenset[str]
    carried: Carried


@dataclasses.dataclass(frozen=True)
class Call:
    """The inputs of a step's trace.

    Attributes:
        function: The step.
        given: Values, by names of its parameters.
        data: The leaves of `given` that are tensors in the trace, by place.
        lifted: Places of numbers and tensors that are passed after its arguments.
        numbers: By name, functions that compute again the arguments which Python computed beforehand.
        replaced: Places of arguments in which each call finds another object, by the ids of this call's.
        is_of_sizes: Whether calls with data of other sizes have a trace of their own.
    """

    function: Callable[..., Any]
    given: Mapping[str, Any]
    data: Mapping[Any, Any]
    lifted: list[Place]
    numbers: Mapping[str, Callable[[], Any]]
    replaced: Mapping[int, Argument] = dataclasses.field(default_factory=dict)
    is_of_sizes: bool = False

    def argument(self, name: str, values: Iterator[Any]) -> Any:
        """Returns a parameter's argument; takes its tensors from `values`."""
        value = self.given[name]
        return packed(value, [self._leaf((name, i), leaf, values) for i, leaf in enumerate(leaves_of(value))])

    def _leaf(self, place: tuple[str, int], leaf: Any, values: Iterator[Any]) -> Any:
        """Returns a leaf as the trace sees it: a tensor from `values`, the object of the call that is made now, or the leaf."""
        if place in self.data:
            tensor = next(values)
            return attach(tensor, {name: next(values) for name in ATTACHED if (*place, name) in self.data})
        # Of another size of batch a step is traced again.
        return self.replaced[id(leaf)].get() if id(leaf) in self.replaced else leaf

    def set_by_step(self) -> set[str]:
        """Returns, at the end of the step, the names in `numbers` whose values have changed."""
        return {
            name for name, compute in self.numbers.items() if not _is_same(value_or_none(compute), self.given[name])
        }


class _Tracing:
    """One trace of a step: runs it on symbolic tensors, and keeps what it leaves behind.

    Attributes:
        stale: The names in `Call.numbers` whose values the step has changed.
        num_seeds: Number of random operations.
    """

    def __init__(self, site: Site, call: Call, kinds: Kinds) -> None:
        self._site, self._call, self._kinds = site, call, kinds
        self.results, self.names = Results(site, set(), {}), list[str]()
        self.num_seeds, self.changed, self.stale = 0, list[str](), set[str]()
        self.watch = self._new_watch()
        self.carried = Carried(self.watch, leaves_of)
        # The sizes for which it was run.
        self._sizes = set[str]()

    def _new_watch(self) -> Watch:
        call = self._call
        replaced = {id(place.get()): place for place in call.replaced.values()}
        return Watch({place.where for place in call.lifted}, replaced)

    def run(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Runs the step; returns the tensors among its results.

        Args:
            tensors: Its data, then the lifted values, then the seeds.

        Raises:
            OneSizeError: It has effects that it did not have in the trace.
        """
        found = repr([tensor.shape for tensor in tensors])
        is_known = self.watch.is_on or found in self._sizes
        self._sizes.add(found)
        if is_known:
            return self._run(tensors)
        again, known = self._new_watch(), self.results.known
        with again.watching():
            outputs = self._run(tensors)
        if effect := again.taken or next(iter(again.effects), None):
            raise OneSizeError(effect)
        # Another thread may have drawn them.
        if self.results.known != known or (again.drawn and not self._call.is_of_sizes):
            raise OneSizeError("what it leaves depends on sizes, or it draws random numbers in Python")
        self.watch.guard_what(again)
        return outputs

    def _run(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        call, num_data = self._call, len(self._call.data)
        beside = tensors[num_data:]
        values, of_lifted, of_seeds = iter(tensors[:num_data]), beside[: len(call.lifted)], beside[len(call.lifted) :]
        arguments = {name: call.argument(name, values) for name in call.given}
        own_seeds = seeds.Seeds(of_seeds)
        contents = {n: Contents(v) for n, v in arguments.items() if Contents.are_in(v) or type(v) is tuple}

        def step() -> dict[str, Any]:
            bound = call.function(**arguments)
            self.stale.update(call.set_by_step())
            return dict(bound)

        with own_seeds.taken(), unseen(), created_at_once(), eager():
            after, values_set = self.carried.traced(step, call.lifted, of_lifted)
        self.num_seeds = own_seeds.count
        self.changed = [name for name, before in contents.items() if not before.are_as_before()]
        for name in self.changed:
            _check_changed(name, arguments[name], contents[name])
        self.names = [name for name in self._site.results if name in after and not _is_kept(name, after, arguments)]
        self.results = Results(
            self._site, {id(leaf) for value in call.given.values() for leaf in leaves_of(value)}, self._kinds
        )
        in_place = {content_of(name): arguments[name] for name in self.changed}
        for key, value in ({name: after[name] for name in self.names} | in_place | values_set).items():
            self.results.add(key, value)
        return self.results.tensors


def trace(site: Site, call: Call, lifted: Callable[[], Sequence[Any]], kinds: Kinds, num_seeds: int = 0) -> Traced:
    """Traces a step.

    Args:
        site: Its place.
        call: Its inputs.
        lifted: Returns the values of `call.lifted`.
        kinds: Which of its results are numbers.
        num_seeds: Number of its random operations, if they shall take seeds.

    Raises:
        StaysError: It cannot be a tf.function.
        DrawsError: Random numbers were drawn in Python.
        SetsError: It changes a value that Python computes beforehand.
        FirstCallError: It makes variables, has functions traced, or changes objects in place.
        UnsupportedError: The trace has taken an element of the script's iterator.
    """
    tracing = _Tracing(site, call, kinds)
    watch = tracing.watch
    with contextlib.ExitStack() as failed:
        failed.callback(watch.take_back_draws)
        traced = _traced(tracing, site, call, lifted, num_seeds)
        failed.pop_all()
    if watch.drawn:
        raise DrawsError(watch)
    if watch.changed_objects:
        raise ChangesError(watch.changed_objects[0])
    return traced


def _traced(tracing: _Tracing, site: Site, call: Call, lifted: Callable[[], Sequence[Any]], num_seeds: int) -> Traced:
    """See `trace`; draws and changes of objects are not looked at."""

    def step(*tensors: tf.Tensor) -> list[tf.Tensor]:
        return tracing.run(tensors)

    step.fdt_place = f"the step in lines {site.line} to {site.end_line}"  # type: ignore[attr-defined]
    function = tf.function(step, autograph=False)
    of_seeds = [tf.TensorSpec([], tf.int64)] * (num_seeds + 1 if num_seeds else 0)
    watch = tracing.watch
    try:
        with watch.watching():
            graph = function.get_concrete_function(*call.data.values(), *lifted(), *of_seeds).graph
    except FdtError:
        raise
    except Exception as error:  # the script's own code runs here
        _forget_functions(watch)
        if _MAKES_VARIABLES in str(error):
            raise MakesVariablesError from None
        raise StaysError(_reason(error, site.file)) from None
    _forget_functions(watch)
    if tracing.stale:
        raise SetsError(tracing.stale)
    if watch.taken is not None:
        # The element that the trace took is lost, so plain Python cannot run the step either.
        raise UnsupportedError(
            f"{site.file}: the step in lines {site.line} to {site.end_line} cannot be outlined: {watch.taken}. Take it "
            "before the step, in a statement of the loop itself: batch = next(batches)."
        )
    if len(watch.effects) > len(watch.changed_objects):
        raise StaysError(watch.effects[0])
    return Traced(
        function,
        graph,
        watch,
        call.lifted,
        tracing.num_seeds,
        tracing.results,
        tracing.names,
        frozenset(tracing.changed),
        tracing.carried,
    )


def _forget_functions(watch: Watch) -> None:
    """Has functions traced again whose trace has changed objects: what they changed was restored.

    Raises:
        TracesFunctionError: There are such functions.
    """
    for function in watch.functions:
        forget(function)
    if watch.functions:
        raise TracesFunctionError(watch.functions[0]) from None


def _check_changed(name: str, value: Any, before: Contents) -> None:
    """Refuses an object that the step has changed in place, unless every step can change it so.

    Raises:
        StaysError: The object is neither a list nor a dict.
    """
    if type(value) not in (list, dict):
        before.restore()
        raise StaysError(f"it changes {name}")


def content_of(name: str) -> Any:
    """Returns the key of the new content of a list or dict that the step was given."""
    return "content", name


def _is_kept(name: str, after: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    """Whether a name is still bound to the list or dict that the step was given: a step can change this one only in place."""
    return type(after[name]) in (list, dict) and after[name] is given.get(name)


def value_or_none(compute: Callable[[], Any]) -> Any:
    """Returns the value of a script's expression; None if it raises, since the step may never evaluate it."""
    try:
        return compute()
    except Exception:  # the script's own
        return None


def _is_same(one: Any, other: Any) -> bool:
    is_number = type(one) is type(other) and isinstance(one, bool | int | float | np.generic)
    return one is other or (is_number and bool(one == other))


def _reason(error: Exception, file: str) -> str:
    """Returns, in a sentence, the script's line at which a step could not be traced, and TensorFlow's reason."""
    lines = [f"line {frame.lineno}: " for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    said = " ".join(str(error).split()).split(". ")[0].rstrip(".")
    return f"{(lines or [''])[-1]}it cannot be traced ({type(error).__name__}: {said[:_MAX_SAID]})"
