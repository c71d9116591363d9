"""Rules for calls, branches and loops: a call is built in place, a predicate is whole, a loop's variables keep one layout."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from fdt.division.conversions import MustBeWholeError
from fdt.division.graphs import function_graph
from fdt.division.layout import WHOLE, Layout
from fdt.division.value import Value
from fdt.division.walker import Node

# How often a loop's layouts are looked at before the variables that still change become whole.
_MAX_LOOKS = 6


def call(node: Node) -> list[Value]:
    """PartitionedCall and StatefulPartitionedCall."""
    inputs = node.inputs
    if node.attr("f").name in node.walk.marks:
        # Here, where all of them are ready, and before an optimizer multiplies them by anything. What the step needed whole
        # before is there already.
        node.walk.gradients |= {value.key for value in inputs if not node.walk.has(value, WHOLE)}
        inputs = [node.walk.converted(value, WHOLE, node.op.name) for value in inputs]
    with node.walk.on_own_rows(node.attr("f").name, inputs):
        return node.walk.function(node.walk.called(node.op, "f"), inputs, node.op.name)


# ---- branches -------------------------------------------------------------------------------------------------------


def branch(node: Node) -> list[Value]:
    """If and StatelessIf."""
    graphs = [node.walk.called(node.op, name) for name in ("then_branch", "else_branch")]
    known = node.constant(0)
    if known is not None:
        return node.walk.function(graphs[0 if known else 1], node.inputs[1:], node.op.name)
    predicate = node.whole(0)[0]
    if predicate.dtype != tf.bool:
        predicate = tf.not_equal(predicate, tf.zeros_like(predicate))
    return _chosen(node, graphs, lambda made: tf.cond(predicate, *made))


def case(node: Node) -> list[Value]:
    """Case and StatelessCase."""
    graphs = [function_graph(node.op.graph, function.name) for function in node.attr("branches")]
    index = node.whole(0)[0]
    return _chosen(node, graphs, lambda made: tf.switch_case(index, made))


def _chosen(node: Node, graphs: Sequence[Any], choose: Callable[[list[Callable[[], Any]]], Any]) -> list[Value]:
    arguments = node.inputs[1:]
    seen: list[list[Value]] = []
    for number, graph in enumerate(graphs):
        with node.walk.trial():
            seen.append(node.walk.function(graph, arguments, f"{node.op.name}.{number}"))
    layouts = [_joined([values[k] for values in seen]) for k in range(len(node.op.outputs))]
    node.walk.settle()

    def made(number: int) -> Callable[[], list[tf.Tensor]]:
        def body() -> list[tf.Tensor]:
            with node.walk.apart():
                values = node.walk.function(graphs[number], arguments, f"{node.op.name}.{number}")
                return _flat(node, values, layouts) or [tf.constant(0)]

        return body

    results = choose([made(number) for number in range(len(graphs))])
    flat = list(results) if isinstance(results, list | tuple) else [results]
    node.walk.note(flat[0].op)
    return _unflat(node, flat, layouts)


def _joined(values: Sequence[Value]) -> Layout:
    if values[0].dtype == tf.variant and any(value.layout != values[0].layout for value in values):
        raise MustBeWholeError(next(value for value in values if value.layout != WHOLE))
    layouts = {value.layout for value in values}
    if len(layouts) == 1:
        return layouts.pop()
    rest = layouts - {WHOLE}
    # What is whole can be cut to fit what is not.
    return rest.pop() if len(rest) == 1 else WHOLE


def _flat(node: Node, values: Sequence[Value], layouts: Sequence[Layout]) -> list[tf.Tensor]:
    """Returns the tensors of values in these layouts; one for a whole value, else one for each worker that is built."""
    flat: list[tf.Tensor] = []
    for value, layout in zip(values, layouts, strict=True):
        tensors = node.walk.tensors(node.walk.converted(value, layout, node.op.name))
        flat += tensors[:1] if layout == WHOLE else tensors
    return flat


def _unflat(node: Node, flat: Sequence[tf.Tensor], layouts: Sequence[Layout]) -> list[Value]:
    values, rest = [], list(flat)
    for layout in layouts:
        count = 1 if layout == WHOLE else node.num_local
        values.append(node.value(layout, rest[:count]))
        del rest[:count]
    return values


# ---- loops ----------------------------------------------------------------------------------------------------------


def loop(node: Node) -> list[Value]:
    """While and StatelessWhile: the layouts of the loop's variables are those that its body gives back as it got them."""
    condition, body = (node.walk.called(node.op, name) for name in ("cond", "body"))
    changing = [i for i, output in enumerate(body.outputs) if not _passes(output, body.inputs[i])]
    key = f"{node.walk.path}/{node.op.name}", tuple(node.layouts)
    if key not in node.walk.loops:
        node.walk.loops[key] = _fixed_point(node, body, changing)
    layouts, shapes = node.walk.loops[key]
    start = _flat(node, [node.inputs[i] for i in changing], layouts)

    def arguments(flat: Sequence[tf.Tensor]) -> list[Value]:
        values = list(node.inputs)
        for i, value in zip(changing, _unflat(node, flat, layouts), strict=True):
            value.source = node.inputs[i].source
            values[i] = value
        return values

    def proceeds(*flat: tf.Tensor) -> tf.Tensor:
        with node.walk.apart():
            (value,) = node.walk.function(condition, arguments(flat), f"{node.op.name}.condition")
            return node.walk.tensors(node.walk.converted(value, WHOLE, node.op.name))[0]

    def once(*flat: tf.Tensor) -> list[tf.Tensor]:
        with node.walk.apart():
            values = node.walk.function(body, arguments(flat), f"{node.op.name}.body")
            return _flat(node, [values[i] for i in changing], layouts)

    if node.walk.planning:
        return arguments([tf.compat.v1.placeholder(t.dtype, shape) for t, shape in zip(start, shapes, strict=True)])
    node.walk.settle()
    # One iteration after the other: exchanges inside must meet those of the same iteration.
    results = tf.while_loop(proceeds, once, start, shape_invariants=shapes, parallel_iterations=1)
    flat = list(results) if isinstance(results, list | tuple) else [results]
    if flat:
        node.walk.note(flat[0].op)
    return arguments(flat)


def _passes(output: Any, given: Any) -> bool:
    """Whether a loop hands a variable on as it is."""
    while output is not given:
        if output.op.type != "Identity" or output.op.control_inputs:
            return False
        output = output.op.inputs[0]
    return True


def _fixed_point(node: Node, body: Any, changing: Sequence[int]) -> tuple[list[Layout], list[tf.TensorShape]]:
    layouts = [node.inputs[i].layout for i in changing]
    for look in range(2 * _MAX_LOOKS):
        with node.walk.trial():
            values = list(node.inputs)
            for i, layout in zip(changing, layouts, strict=True):
                values[i] = _stand_in(node, node.inputs[i], layout)
            before = _flat(node, [values[i] for i in changing], layouts)
            found = node.walk.function(body, values, f"{node.op.name}.body")
            after = [found[i] for i in changing]
            for value, layout, i in zip(after, layouts, changing, strict=True):
                if value.dtype == tf.variant and value.layout != layout and node.inputs[i].remake is None:
                    raise MustBeWholeError(value if value.layout != WHOLE else values[i])
            wanted = [
                WHOLE if look >= _MAX_LOOKS and layout != value.layout else _kept(layout, value.layout)
                for layout, value in zip(layouts, after, strict=True)
            ]
            if wanted == layouts:
                ends = _flat(node, after, layouts)
                return layouts, [
                    b.shape.most_specific_compatible_shape(a.shape) for b, a in zip(before, ends, strict=True)
                ]
        layouts = wanted
    raise AssertionError("A loop's layouts did not settle: after some looks all that change are whole.")


def _stand_in(node: Node, value: Value, layout: Layout) -> Value:
    """Returns a loop's variable as its body sees it: its elements are not known, those of a list have a layout."""
    converted = node.walk.converted(value, layout, node.op.name)
    tensors = node.walk.tensors(converted)
    shapes = [tf.TensorShape(None) if value.dtype == tf.variant else tensor.shape for tensor in tensors]
    made = [tf.compat.v1.placeholder(value.dtype, shape) for shape in shapes]
    if layout == WHOLE:
        made = made[:1] * len(made)
    stand_in = Value(layout, value.source, tuple(made))
    if value.remake is not None and layout == WHOLE:
        # As long as nothing is in it, its first element may say how it is divided.
        stand_in.remake = lambda other: _stand_in(node, value, other)
    return stand_in


def _kept(before: Layout, after: Layout) -> Layout:
    if before == after or after == WHOLE:
        return before
    if before == WHOLE:
        return after
    # Two ways to be divided have nothing in common but the whole.
    return WHOLE


def rules() -> dict[str, object]:
    """Returns the rules of this file by operation."""
    return {
        **dict.fromkeys(("PartitionedCall", "StatefulPartitionedCall"), call),
        **dict.fromkeys(("If", "StatelessIf"), branch),
        **dict.fromkeys(("Case", "StatelessCase"), case),
        **dict.fromkeys(("While", "StatelessWhile"), loop),
    }
