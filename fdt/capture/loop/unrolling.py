"""Runs loops over data that are written inside a tf.function: Python drives them, and their body is the step.

    @tf.function
    def epoch(dataset):
        for x, y in dataset:    # in the graph, AutoGraph makes a loop of it that hides its steps
            ...

In place of TensorFlow's trace, the function's Python runs, converted by AutoGraph as usual. Only a loop over data differs: it
makes a tf.function of its body and calls it for every element, as a step like any other.
"""

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf
from tensorflow.python.autograph.core.function_wrappers import FunctionScope
from tensorflow.python.autograph.impl import api
from tensorflow.python.autograph.operators.variables import Undefined, UndefinedReturnValue
from tensorflow.python.data.ops.iterator_ops import OwnedIterator

from fdt.base.patch import Patches
from fdt.capture.refusals import remedy_for_eager
from fdt.capture.step.inlining import in_graph
from fdt.capture.thread_output import held_back

_OVER_DATA = {"ReduceDataset", "ScanDataset", "TakeWhileDataset"}
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_LOOPS = ("While", "StatelessWhile")
# The remedy for training outside the loops that can be driven.
_REMEDY = (
    "The tf.function around it loops over data in a way that is no `for` over a data set or an iterator, or trains outside of "
    "that. Write all that trains into such a `for`; or put the loop around the tf.function, in Python, and have that take one "
    "element."
)
# The bodies of the function whose loops are being driven, None if there is none.
_driving: ContextVar["_Bodies | None"] = ContextVar("fdt_driving", default=None)


def is_driving() -> bool:
    """Whether a function's loops are being driven; training outside them belongs to the function's graph, not to a step."""
    return _driving.get() is not None


class Unrolling:
    """Finds functions with such loops, and runs them."""

    def __init__(self) -> None:
        """Knows no functions yet."""
        # By traced function.
        self._known: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
        # By id of a function, which is kept alive so that the id stays unique.
        self._bodies: dict[int, tuple[Any, _Bodies]] = {}

    def install(self, patches: Patches) -> None:
        """Puts the hook in place."""
        patches.wrap(api._TRANSPILER.get_extra_locals()["ag__"], "for_stmt", _for)

    def loops(self, concrete: Any, function: Any) -> bool:
        """Returns whether a function loops over data in its graph, and its Python can be driven."""
        if concrete not in self._known:
            self._known[concrete] = function._autograph and _loops_over_data(concrete.graph)
        return self._known[concrete]

    def run(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Runs a function's Python; returns its result."""
        _, bodies = self._bodies.setdefault(id(function), (function, _Bodies()))
        token = _driving.set(bodies)
        try:
            # TensorFlow's own trace has already printed what the function prints.
            with held_back(), remedy_for_eager(_REMEDY):
                return in_graph(function)(*args, **kwargs)
        finally:
            _driving.reset(token)


class _Bodies:
    """The steps that bodies of one function's loops have become."""

    def __init__(self) -> None:
        self._steps: dict[Any, list[tuple[dict[str, Any], _Body]]] = {}

    def of(
        self, body: Callable[..., Any], get_state: Any, set_state: Any, cells: Mapping[str, Any], seen: dict[str, Any]
    ) -> "_Body":
        """Returns the step for a body; reuses an earlier one if all values that the body reads, except tensors, are equal."""
        known = self._steps.setdefault(body.__code__, [])
        for before, step in known:
            if before.keys() == seen.keys() and all(_is_same(before[name], seen[name]) for name in seen):
                return step
        known.append((seen, _Body(body, get_state, set_state, cells)))
        return known[-1][1]


def _cells(body: Callable[..., Any], names: Any) -> dict[str, Any]:
    """Returns a body's closure cells, without those of the loop's variables."""
    cells = zip(body.__code__.co_freevars, body.__closure__ or (), strict=True)
    return {name: cell for name, cell in cells if name not in names and _is_filled(cell)}


class _Body:
    """A loop's body as a function of the loop's variables, of other tensors that it sees, and of an element."""

    def __init__(
        self,
        body: Callable[..., Any],
        get_state: Callable[[], Any],
        set_state: Callable[[Any], None],
        cells: Mapping[str, Any],
    ):
        # Of the last trace: variables of the loop that are no tensors.
        self._others: list[Any] = []

        def step(state: list[Any], seen: dict[str, Any], element: Any) -> list[Any]:
            before, contents = get_state(), {name: cells[name].cell_contents for name in seen}
            # Values other than tensors are no inputs; they keep their outer value.
            set_state(tuple(old if new is None else new for old, new in zip(before, state, strict=True)))
            _fill(cells, seen)
            try:
                body(element)
                after = list(get_state())
            finally:
                set_state(before)
                _fill(cells, contents)
            self._others = [None if _is_value(value) else value for value in after]
            return [value if _is_value(value) else None for value in after]

        # AutoGraph has converted the body already.
        self._function = tf.function(step, autograph=False, reduce_retracing=True)

    def __call__(self, state: list[Any], seen: dict[str, Any], element: Any) -> list[Any]:
        """Runs it; returns the loop's variables afterwards.

        Args:
            state: The loop's variables that are tensors, None for others.
            seen: Tensors of the function around it, by their names there.
            element: An element of the data that the loop is over.
        """
        values = self._function(state, seen, element)
        return [other if value is None else value for value, other in zip(values, self._others, strict=True)]


def _for(
    original: Callable[..., None],
    iterated: Any,
    extra_test: Callable[[], Any] | None,
    body: Callable[..., Any],
    get_state: Callable[[], Any],
    set_state: Callable[[Any], None],
    names: Any,
    options: Any,
) -> None:
    bodies = _driving.get()
    is_data = isinstance(iterated, tf.data.Dataset | OwnedIterator)
    if bodies is None or not tf.executing_eagerly() or not (is_data or tf.is_tensor(iterated)):
        original(iterated, extra_test, body, get_state, set_state, names, options)
        return
    if not is_data and _has_loops(body.__code__):
        # A loop around loops.
        for element in iterated:
            if extra_test is not None and not extra_test():
                return
            body(element)
        return
    # Variables that the body itself defines are not needed from before.
    needed = [not _is_undefined(value) for value in get_state()]
    cells = _cells(body, names)
    contents = {name: cell.cell_contents for name, cell in cells.items()}
    tensors = {name: value for name, value in contents.items() if _is_tensor(value)}
    others = {name: v for name, v in contents.items() if name not in tensors and not isinstance(v, FunctionScope)}
    for element in iterated:
        if extra_test is not None and not extra_test():
            return
        state = [
            _as_variable(value) if is_needed else None for value, is_needed in zip(get_state(), needed, strict=True)
        ]
        constants = {name: v for name, v in zip(names, get_state(), strict=True) if not _is_value(v)}
        step = bodies.of(body, get_state, set_state, cells, others | constants)
        set_state(tuple(step([value if _is_value(value) else None for value in state], tensors, element)))


def _loops_over_data(graph: Any) -> bool:
    for operation in graph.get_operations():
        if operation.type in _OVER_DATA:
            return True
        names = {_LOOPS[0]: "body", _LOOPS[1]: "body", _CALLS[0]: "f", _CALLS[1]: "f"}
        if operation.type in names:
            inner = graph._get_function(operation.get_attr(names[operation.type]).name)
            inside = {node.op for node in inner.cached_definition.node_def}
            if operation.type in _LOOPS and any(op.startswith("IteratorGetNext") for op in inside):
                return True
            if _loops_over_data(inner.graph):
                return True
    return False


def _has_loops(code: Any) -> bool:
    return "for_stmt" in code.co_names or any(_has_loops(each) for each in code.co_consts if hasattr(each, "co_names"))


def _fill(cells: Mapping[str, Any], contents: Mapping[str, Any]) -> None:
    for name, value in contents.items():
        cells[name].cell_contents = value


def _is_filled(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, str | bytes | bool | int | float | type(None)):
        return type(one) is type(other) and bool(one == other)
    return one is other or (_is_undefined(one) and _is_undefined(other))


def _is_undefined(value: Any) -> bool:
    return isinstance(value, Undefined | UndefinedReturnValue)


def _is_value(value: Any) -> bool:
    """Whether a function can return it."""
    return tf.is_tensor(value) or isinstance(
        value, bool | int | float | tf.RaggedTensor | tf.SparseTensor | tf.TensorArray
    )


def _is_tensor(value: Any) -> bool:
    return tf.is_tensor(value) and not isinstance(value, tf.Variable)


def _as_variable(value: Any) -> Any:
    """Returns a loop's variable as a loop in the graph would hold it: a number as a tensor."""
    return tf.convert_to_tensor(value) if isinstance(value, bool | int | float) else value
