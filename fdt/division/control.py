"""Rules for calls, branches and loops: a call is built in place, a predicate is whole, a loop's variables keep one layout."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.division.conversions import MustBeWholeError, has_no_rows
from fdt.division.owners import kept, placed
from fdt.division.state import is_part
from fdt.division.walker import Node
from fdt.program.body import Body, Wire, attribute, named
from fdt.program.graphs import functions_of
from fdt.program.layout import WHOLE, Divided, Layout, Owned
from fdt.program.size import Size, is_same
from fdt.program.value import Elements, Shape, Value, known

# After how many passes over a loop's body the variables whose layout still changes become whole.
_MAX_LOOKS = 6
_numbers = itertools.count()


def call(node: Node) -> list[Value]:
    """PartitionedCall and StatefulPartitionedCall."""
    inputs, name = node.inputs, node.attr("f").name
    if name in node.walk.marks:
        # Exchange gradients here, where all of them are ready and no optimizer has scaled them yet. Gradients that the step
        # has used whole before are exchanged already.
        inputs = placed(node, inputs, node.walk.owners.get(name, ()))
        whole = [value for value in inputs if not is_part(value.layout)]
        node.walk.gradients |= {value.key for value in whole if not node.walk.has(value, WHOLE)}
        inputs = [node.walk.converted(value, WHOLE, node.op.name) if value in whole else value for value in inputs]
    with node.walk.on_own_rows(name, inputs):
        return _within(node, name, inputs, node.op.name)


def _within(node: Node, function: str, inputs: Sequence[Value], path: str) -> list[Value]:
    """Writes a function that the operation calls into the current function, inline."""
    return node.walk.function(node.walk.functions.sized(node.op.graph, function, inputs), inputs, path)


# ---- functions of the division's own --------------------------------------------------------------------------------


def _flat(node: Node, values: Sequence[Value], layouts: Sequence[Layout]) -> list[Wire]:
    """Returns the tensors of values in these layouts: one for a whole value, otherwise one for each worker in this graph."""
    flat: list[Wire] = []
    for value, layout in zip(values, layouts, strict=True):
        if value.places is not None:
            raise MustBeWholeError(value)
        tensors = node.walk.tensors(node.walk.converted(value, layout, node.op.name))
        flat += tensors[:1] if layout == WHOLE else tensors
    return flat


def _parts(node: Node, flat: Iterator[Wire], layouts: Sequence[Layout]) -> list[list[Wire]]:
    """Splits the tensors that `_flat` returned by value."""
    return [list(itertools.islice(flat, 1 if layout == WHOLE else node.num_local)) for layout in layouts]


def _common(one: Shape, other: Shape) -> Shape:
    """Returns the most specific shape that both shapes match."""
    if one is None or other is None or len(one) != len(other):
        return None
    pairs = zip(one, other, strict=True)
    # What is asked here is not asked again when the loop is written.
    return tuple(a if is_same(a, b) else None for a, b in pairs)


def _written(
    node: Node,
    bodies: Sequence[tuple[Body, Sequence[Wire]]],
    own: Sequence[Wire],
    names: Sequence[str],
) -> Iterator[Wire]:
    """Writes an operation that calls functions made by the division; yields its outputs.

    Args:
        node: The script's operation.
        bodies: The functions and their outputs; tensors that they use from outer functions become inputs of all of them.
        own: The operation's other inputs.
        names: The attributes that name the functions; a single attribute names all.
    """
    # An output that is an outer tensor passed through is captured too.
    bodies = [(body, [body.here(wire) for wire in outputs]) for body, outputs in bodies]
    captured = list(dict.fromkeys(wire for body, _ in bodies for wire in body.captured))
    given = [*own, *captured]
    loops = "cond" in names
    made = []
    for (body, outputs), part in zip(bodies, names if loops else [""] * len(bodies), strict=True):
        name = f"fdt_part_{next(_numbers)}"
        # A loop's body has to return all its inputs.
        returned = [*outputs, *captured] if part == "body" else outputs
        node.walk.library[name] = body.finished(name, returned, captured)
        made.append(named(name))
    written = node.op.node_def
    attributes: dict[str, Any] = {"output_shapes": []}
    if loops:
        # One iteration after the other, so that all workers' exchanges belong to the same iteration.
        attributes |= {"T": [wire.dtype for wire in given], "parallel_iterations": 1}
    else:
        attributes |= {"Tin": [wire.dtype for wire in captured], "Tout": [wire.dtype for wire in bodies[0][1]]}
    for key, value in attributes.items():
        written.attr[key].CopyFrom(attribute(value))
    if len(names) == 1:
        del written.attr[names[0]].list.func[:]
        written.attr[names[0]].list.func.extend(each.func for each in made)
    else:
        for key, value in zip(names, made, strict=True):
            written.attr[key].CopyFrom(value)
    kind = node.op.type.removeprefix("Stateless")
    written.op = kind if any(body.is_stateful for body, _ in bodies) else f"Stateless{kind}"
    return iter(node.walk.write(written, given))


# ---- branches -------------------------------------------------------------------------------------------------------


def branch(node: Node) -> list[Value]:
    """If and StatelessIf."""
    names = ["then_branch", "else_branch"]
    functions = [node.attr(name).name for name in names]
    taken = node.constant(0)
    if taken is not None:
        return _within(node, functions[0 if taken else 1], node.inputs[1:], node.op.name)
    return _chosen(node, functions, names)


def case(node: Node) -> list[Value]:
    """Case and StatelessCase."""
    return _chosen(node, functions_of({"branches": node.op.node_def.attr["branches"]}), ["branches"])


def _chosen(node: Node, functions: Sequence[str], names: Sequence[str]) -> list[Value]:
    walk, choice, arguments = node.walk, node.whole(0)[:1], node.inputs[1:]
    paths = [f"{node.op.name}.{number}" for number in range(len(functions))]
    seen: list[list[Value]] = []
    for function, path in zip(functions, paths, strict=True):
        with walk.trial():
            seen.append(_within(node, function, arguments, path))
    ends = [[values[k] for values in seen] for k in range(len(node.op.outputs))]
    layouts = [_joined(values) for values in ends]
    numbers = _row_numbers(ends)
    for owned, places in numbers.items():
        layouts = [owned if k in places else each for k, each in enumerate(layouts)]
    walk.settle()
    bodies: list[tuple[Body, list[Wire]]] = []
    for function, path in zip(functions, paths, strict=True):
        with walk.apart() as body:
            outputs = _own_rows(node, _within(node, function, arguments, path), numbers)
            bodies.append((body, _flat(node, outputs, layouts)))
    flat: Iterator[Wire] = itertools.repeat(walk.body.nothing)
    if not walk.body.is_dry:
        flat = _written(node, bodies, choice, names)
    results = []
    for place, (layout, tensors) in enumerate(zip(layouts, _parts(node, flat, layouts), strict=True)):
        results.append(_same(node, place, ends[place]) or node.value(layout, tensors, place))
        results[-1].row_numbers = any(places[0] == place for places in numbers.values())
        shapes = {value.shape for value in ends[place]}
        results[-1].shape = (
            shapes.pop() if len(shapes) == 1 else _common(*list(shapes)[:2]) if len(shapes) == 2 else None
        )
    return results


def _same(node: Node, place: int, values: Sequence[Value]) -> Value | None:
    """Returns an output that has the same elements in all branches, if they are known."""
    constants = [value.constant for value in values]
    first = constants[0]
    if first is None or not all(each is not None and np.array_equal(first, each) for each in constants):
        return None
    return known(first, node.op.name, node.op.outputs[place].dtype)


def _joined(values: Sequence[Value]) -> Layout:
    if values[0].dtype == tf.variant and any(value.layout != values[0].layout for value in values):
        raise MustBeWholeError(next(value for value in values if value.layout != WHOLE))
    layouts = {value.layout for value in values}
    if len(layouts) == 1:
        return layouts.pop()
    rest = layouts - {WHOLE}
    if any(isinstance(layout, Owned) for layout in rest):
        # Which rows of a gradient are whose is not known by a value alone, unless there are none; see `_row_numbers`.
        others = [value for value in values if value.layout == WHOLE]
        return rest.pop() if len(rest) == 1 and all(map(has_no_rows, others)) else WHOLE
    # A whole value can be cut to another branch's layout.
    return rest.pop() if len(rest) == 1 else WHOLE


def _row_numbers(ends: Sequence[Sequence[Value]]) -> dict[Owned, list[int]]:
    """Finds sparse gradients whose rows some branches leave with their owners, and others return whole.

    Args:
        ends: For each output its value in each branch.

    Returns:
        By layout the places of outputs that belong to one gradient, first that of the rows' numbers.
    """
    found: dict[Owned, list[int]] = {}
    for layout in {value.layout for values in ends for value in values if isinstance(value.layout, Owned)}:
        places = [k for k, values in enumerate(ends) if any(value.layout == layout for value in values)]
        numbers = [k for k in places if any(value.row_numbers and value.layout == layout for value in ends[k])]
        together = [{ends[k][branch].layout for k in places} for branch in range(len(ends[0]))]
        have_rows = all(value.shape for k in places for value in ends[k])
        if len(numbers) == 1 and have_rows and all(layouts in ({layout}, {WHOLE}) for layouts in together):
            found[layout] = [*numbers, *(k for k in places if k not in numbers)]
    return found


def _own_rows(node: Node, outputs: list[Value], numbers: Mapping[Owned, Sequence[int]]) -> list[Value]:
    """Returns a branch's outputs with the rows of gradients on their owners; see `_row_numbers`."""
    made = list(outputs)
    for layout, places in numbers.items():
        ids = outputs[places[0]]
        for k in places:
            if outputs[k].layout == WHOLE and ids.layout == WHOLE:
                made[k] = kept(node.walk, outputs[k], ids, layout, node.op.name)
    return made


# ---- loops ----------------------------------------------------------------------------------------------------------


def loop(node: Node) -> list[Value]:
    """While and StatelessWhile: the loop variables' layouts are a fixed point of the body."""
    walk, names = node.walk, ["cond", "body"]
    functions = [node.attr(name).name for name in names]
    body = walk.functions.definitions[functions[1]]
    changing = [i for i in range(len(node.inputs)) if not _passes(body, i)]
    known = tuple((value.shape, value.elements) for value in node.inputs)
    key = f"{walk.path}/{node.op.name}", tuple(node.layouts), known
    if key not in walk.loops:
        walk.loops[key] = _fixed_point(node, functions[1], changing)
    layouts, shapes, elements = walk.loops[key]
    start = _flat(node, [node.inputs[i] for i in changing], layouts)

    def values(flat: Iterator[Wire]) -> list[Value]:
        found = list(node.inputs)
        parts = _parts(node, flat, layouts)
        for i, layout, shape, each, tensors in zip(changing, layouts, shapes, elements, parts, strict=True):
            found[i] = node.value(layout, tensors, i)
            found[i].shape, found[i].source, found[i].elements = shape, node.inputs[i].source, each
            found[i].is_of_sizes = walk.conditions is not None
        return found

    if walk.body.is_dry:
        return values(itertools.repeat(walk.body.nothing))
    walk.settle()
    bodies: list[tuple[Body, list[Wire]]] = []
    for function, path in zip(functions, ("condition", "body"), strict=True):
        with walk.apart() as made:
            arguments = values(iter([made.argument(wire.dtype) for wire in start]))
            ends = _within(node, function, arguments, f"{node.op.name}.{path}")
            is_body = path == "body"
            bodies.append(
                (made, _flat(node, [ends[i] for i in changing] if is_body else ends, layouts if is_body else [WHOLE]))
            )
    return values(_written(node, bodies, start, names))


def _passes(body: Any, place: int) -> bool:
    """Whether a loop's body returns a variable unchanged."""
    nodes = {node.name: node for node in body.node_def}
    tensor = body.ret[body.signature.output_arg[place].name]
    while ":" in tensor:
        node = nodes[tensor.partition(":")[0]]
        if node.op != "Identity" or len(node.input) > 1:
            return False
        tensor = node.input[0]
    return bool(tensor == body.signature.input_arg[place].name)


def _fixed_point(node: Node, body: str, changing: Sequence[int]) -> tuple[list[Layout], list[Shape], list[Elements]]:
    given = [node.inputs[i] for i in changing]
    layouts, shapes = [value.layout for value in given], [value.shape for value in given]
    elements = [value.elements for value in given]
    for look in range(2 * _MAX_LOOKS):
        with node.walk.trial():
            values = list(node.inputs)
            for i, layout, shape, each in zip(changing, layouts, shapes, elements, strict=True):
                values[i] = _stand_in(node, node.inputs[i], layout, shape, each)
            found = _within(node, body, values, f"{node.op.name}.body")
            after = [found[i] for i in changing]
            for value, layout, i in zip(after, layouts, changing, strict=True):
                if value.dtype == tf.variant and value.layout != layout and node.inputs[i].remake is None:
                    raise MustBeWholeError(value if value.layout != WHOLE else values[i])
            wanted = [
                WHOLE if look >= _MAX_LOOKS and layout != value.layout else _kept(layout, value.layout)
                for layout, value in zip(layouts, after, strict=True)
            ]
            wider = [_common(shape, value.shape) for shape, value in zip(shapes, after, strict=True)]
            both = [_in_common(each, value.elements) for each, value in zip(elements, after, strict=True)]
            if (wanted, wider, both) == (layouts, shapes, elements):
                _flat(node, after, layouts)
                return layouts, shapes, elements
        layouts, shapes, elements = wanted, wider, both
    raise AssertionError("A loop's layouts did not settle: after some looks all that change are whole.")


def _in_common(before: Elements, after: Elements) -> Elements:
    """Returns the common elements of two possible lists, None if they differ; an empty list fits any elements."""
    if before == ():
        return after
    if after == ():
        return before
    if not before or not after:
        return None
    (kind, shape, entries), (other_kind, other_shape, others) = before, after
    if (kind, shape) != (other_kind, other_shape):
        return None
    return before if all(map(_are_same, entries, others)) else None


def _are_same(one: Any, other: Any) -> bool:
    return is_same(one, other) if isinstance(one, Size) or isinstance(other, Size) else bool(one == other)


def _stand_in(node: Node, value: Value, layout: Layout, shape: Shape, elements: Elements = None) -> Value:
    """Returns a loop variable as its body sees it: constants are not known, a list's elements have a layout."""
    tensors = node.walk.tensors(node.walk.converted(value, layout, node.op.name))
    if isinstance(layout, Divided) and shape is not None and value.dtype != tf.variant:
        shape = (*shape[: layout.dim], layout.size, *shape[layout.dim + 1 :])
    stand_in = Value(layout, value.source, shape, value.dtype, tensors, handle=value.handle, elements=elements)
    stand_in.is_of_sizes = node.walk.conditions is not None
    if value.remake is not None and layout == WHOLE:
        # While the list is empty, its first element may decide its layout.
        stand_in.remake = lambda other: _stand_in(node, value, other, shape, elements)
    return stand_in


def _kept(before: Layout, after: Layout) -> Layout:
    if before == after or after == WHOLE:
        return before
    if before == WHOLE and not isinstance(after, Owned):
        return after
    # Two different divisions fit only the whole layout.
    return WHOLE


def rules() -> dict[str, object]:
    """Returns the rules of this file by operation."""
    return {
        **dict.fromkeys(("PartitionedCall", "StatefulPartitionedCall"), call),
        **dict.fromkeys(("If", "StatelessIf"), branch),
        **dict.fromkeys(("Case", "StatelessCase"), case),
        **dict.fromkeys(("While", "StatelessWhile"), loop),
    }
