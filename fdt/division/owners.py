"""Rules for rows of variables of which every worker holds a part: ids and rows travel to and from the rows' owners.

A sparse gradient is brought to the owners where the step hands it to its optimizer. Rows that share an id stay apart, in the
batch's order, so that an optimizer that squares rows before it adds them up gives what it gives on one machine.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import tensorflow as tf

from fdt.division import elementwise, indexing, reductions, shaping, slices
from fdt.division.buckets import buckets
from fdt.division.conversions import MustBeWholeError, loose
from fdt.division.state import BY_ENTRY, REDUCING
from fdt.division.walker import Node, Rule, Walk
from fdt.program.body import Wire
from fdt.program.layout import PARTIAL, WHOLE, Divided, Layout, Owned, Partial
from fdt.program.value import Value

# Gradients of so many bytes travel to their variables' parts in one message, and are freed when it has gone.
TOGETHER_BYTES = 16 << 20

# ---- rows that are looked up ----------------------------------------------------------------------------------------


def looked_up(node: Node) -> list[Value] | None:
    """GatherV2, Gather, ResourceGather: rows of a divided table, by ids of the batch or by the same ids on all workers."""
    owners, ids = node.layouts[0], node.layouts[1]
    axis = node.constant(2) if len(node.inputs) > 2 else 0
    known = node.inputs[1].shape is not None and node.shapes[0] is not None
    alone = known and axis == 0 and not (node.op.type != "Gather" and node.attr("batch_dims"))
    if not (isinstance(owners, Divided) and owners.of_state and owners.dim == 0 and alone):
        return None
    if isinstance(ids, Divided) and not ids.of_state:
        return _asked(node, owners, ids)
    if isinstance(ids, Owned) and ids.owners == owners:
        (local,) = node.walk.computed(partial(_local, owners), [node.inputs[1]], ("local", owners))
        return [node.value(ids, _rows(node, local))]
    return _own_ones(node, owners) if ids == WHOLE else None


def _row(node: Node) -> tuple[Any, ...]:
    """Returns the shape of a row."""
    return (node.shapes[0] or ())[len(node.inputs[1].shape or ()) :]


def _rows(node: Node, ids: Sequence[Wire]) -> list[Wire]:
    """Writes the lookup on each worker's part."""
    rest = [node.whole(i) for i in range(2, len(node.inputs))]
    return [
        node.emit([table, own, *(given[place] for given in rest)])[0]
        for place, (table, own) in enumerate(zip(node.own(0), ids, strict=True))
    ]


def _asked(node: Node, owners: Divided, ids: Divided) -> list[Value]:
    """Each worker asks the owners for the rows that its ids name, for each row once."""
    walk, given = node.walk, node.inputs[1]
    wanted, counts, places = walk.computed(partial(_sorted_ids, owners), [given], ("wanted", owners), 3)
    entries = Value(WHOLE, given.source, (None,), given.dtype, wanted)
    number = _counts(walk, counts)
    (received,), numbers = walk.swapped([(entries, given.num_bytes)], number, node.op.name)
    (local,) = walk.computed(partial(_local, owners), [received], ("local", owners))
    rows = Value(WHOLE, node.op.name, (None, *_row(node)), node.op.outputs[0].dtype, tuple(_rows(node, local)))
    (back,), _ = walk.swapped([(rows, node.value(WHOLE, ()).num_bytes)], numbers, node.op.name)
    where = Value(WHOLE, given.source, (None,), tf.int32, places)
    (found,) = walk.computed(_put, [back, where, given], "put")
    walk.count(node.op, is_divided=True)
    return [node.value(ids, found)]


def _own_ones(node: Node, owners: Divided) -> list[Value]:
    """All workers want the same rows: each adds those that it owns, and zeros for others."""
    walk, given = node.walk, node.inputs[1]
    local, is_own = walk.computed(partial(_masked, owners), [given], ("masked", owners), 2)
    rows = Value(
        WHOLE,
        node.op.name,
        (None,) * (len(given.shape or ()) + len(_row(node))),
        node.op.outputs[0].dtype,
        tuple(_rows(node, local)),
    )
    mine = Value(WHOLE, given.source, given.shape, tf.bool, is_own)
    (found,) = walk.computed(_zero_unless, [rows, mine], "zero unless")
    return [node.value(PARTIAL, found)]


def _counts(walk: Walk, tensors: Sequence[Wire]) -> Value:
    """Returns how many entries go to each worker."""
    return Value(WHOLE, "counts", (walk.exchange.num_workers,), tf.int32, tuple(tensors))


def _start(owners: Divided, rank: int) -> int:
    return int(sum(owners.sizes[:rank]))


def _owner(owners: Divided, ids: tf.Tensor) -> tf.Tensor:
    """Returns the worker that holds each row; int32 [ids]."""
    ends = np.cumsum([int(size) for size in owners.sizes])
    return tf.searchsorted(tf.constant(ends, tf.int64), tf.cast(ids, tf.int64), side="right")


def _order(owners: Divided, ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the order that brings ids to their owners, those of one owner as they came, and how many each gets."""
    owner = _owner(owners, ids)
    counts = tf.math.bincount(owner, minlength=len(owners.sizes), maxlength=len(owners.sizes), dtype=tf.int32)
    return tf.argsort(owner, stable=True), counts


def _sorted_ids(owners: Divided, _: int, ids: tf.Tensor) -> list[tf.Tensor]:
    flat, size = tf.reshape(ids, [-1]), tf.cast(owners.size, ids.dtype)
    wrong = tf.boolean_mask(flat, (flat < 0) | (flat >= size))
    told = ["indices =", wrong, "is not in [0,", size, ")"]
    check = tf.raw_ops.Assert(condition=tf.equal(tf.size(wrong), 0), data=told, summarize=10)
    with tf.control_dependencies([check]):
        different, places = tf.unique(flat)
    order, counts = _order(owners, different)
    return [tf.gather(different, order), counts, tf.gather(tf.math.invert_permutation(order), places)]


def _local(owners: Divided, rank: int, ids: tf.Tensor) -> tf.Tensor:
    return ids - tf.cast(_start(owners, rank), ids.dtype)


def _put(_: int, rows: tf.Tensor, places: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    return tf.reshape(tf.gather(rows, places), tf.concat([tf.shape(ids), tf.shape(rows)[1:]], 0))


def _masked(owners: Divided, rank: int, ids: tf.Tensor) -> list[tf.Tensor]:
    own = ids - tf.cast(_start(owners, rank), ids.dtype)
    is_own = (own >= 0) & (own < tf.cast(owners.sizes[rank], ids.dtype))
    return [tf.where(is_own, own, 0), is_own]


def _zero_unless(_: int, rows: tf.Tensor, is_own: tf.Tensor) -> tf.Tensor:
    for _dim in range(rows.shape.rank - is_own.shape.rank):
        is_own = is_own[..., None]
    return tf.where(is_own, rows, tf.zeros([], rows.dtype))


# ---- gradients ------------------------------------------------------------------------------------------------------


def placed(node: Node, inputs: Sequence[Value], owners: Sequence[tuple[Layout, bool]]) -> list[Value]:
    """Brings gradients of divided variables to the variables' parts.

    Args:
        node: The call of the function that marks gradients.
        inputs: Its arguments: the share, then of each gradient its tensor, or its rows and their ids.
        owners: For each gradient the layout of its variable, and whether it is rows and ids.
    """
    found, walk, name = list(inputs), node.walk, node.op.name
    place, dense = 1, list[int]()
    for layout, is_sparse in owners:
        if isinstance(layout, Divided):
            walk.gradients.add(inputs[place].key)
            if is_sparse:
                found[place : place + 2] = _brought(walk, inputs[place], inputs[place + 1], layout, name)
            else:
                dense.append(place)
                found[place] = Value(layout, "", None, inputs[place].dtype)
        place += 2 if is_sparse else 1
    waiting = [i for i in dense if inputs[i].layout == PARTIAL and not walk.has(inputs[i], WHOLE)]
    most_bytes = min(TOGETHER_BYTES, walk.exchange.bucket_bytes or TOGETHER_BYTES)
    for dtype in dict.fromkeys(inputs[i].dtype for i in waiting):
        # Back-propagation comes to the last variable first.
        of_type = [i for i in reversed(waiting) if inputs[i].dtype == dtype]
        for bucket in buckets([inputs[i].num_bytes for i in of_type], most_bytes):
            together = of_type[bucket]
            layouts = [cast(Divided, found[i].layout) for i in together]
            walk.scattered([inputs[i] for i in together], layouts, name, behind=bucket.stop < len(of_type))
    for i in dense:
        found[i] = walk.converted(inputs[i], found[i].layout, name)
    return found


def _brought(walk: Walk, values: Value, ids: Value, owners: Divided, reader: str) -> list[Value]:
    """Returns the rows of a sparse gradient, and their ids, on the workers that own them."""
    layout, of = Owned(owners, values.key), values.layout
    if isinstance(of, Divided) and of.dim == 0 and not of.of_state:
        own = walk.converted(ids, of, reader)
        rows, names, counts = walk.computed(partial(_to_owners, owners), [values, own], ("to owners", owners), 3)
        number = _counts(walk, counts)
        pair = [(loose(given, tensors), given.num_bytes) for given, tensors in ((values, rows), (ids, names))]
        parts = [each.tensors for each in walk.swapped(pair, number, reader, gradients=True)[0]]
    else:
        both = [walk.converted(each, WHOLE, reader) for each in (values, ids)]
        parts = walk.computed(partial(_kept, owners), both, ("kept", owners), 2)
    made = [given.held(layout, tensors) for given, tensors in zip((values, ids), parts, strict=True)]
    made[1].row_numbers = True
    return made


def kept(walk: Walk, values: Value, ids: Value, layout: Owned, reader: str) -> Value:
    """Returns rows on the workers that own them, given these rows and their ids in any layout."""
    both = [walk.converted(each, WHOLE, reader) for each in (values, ids)]
    (own, _) = walk.computed(partial(_kept, layout.owners), both, ("kept", layout.owners), 2)
    return values.held(layout, own)


def _to_owners(owners: Divided, _: int, values: tf.Tensor, ids: tf.Tensor) -> list[tf.Tensor]:
    # Values are computed of the rows that were looked up: where an id is wrong, that lookup tells.
    with tf.control_dependencies([values]):
        ids = tf.identity(ids)
    order, counts = _order(owners, ids)
    return [tf.gather(values, order), tf.gather(ids, order), counts]


def _kept(owners: Divided, rank: int, values: tf.Tensor, ids: tf.Tensor) -> list[tf.Tensor]:
    own = tf.equal(_owner(owners, tf.reshape(ids, [-1])), rank)
    return [tf.boolean_mask(values, own), tf.boolean_mask(ids, own)]


def summed(node: Node) -> list[Value] | None:
    """UnsortedSegmentSum of rows by their ids: gives each worker its part of the variable's dense gradient; and by `unique`."""
    if node.inputs[1].places is not None:
        return _summed_by_unique(node)
    values, ids = node.layouts[:2]
    count = node.constant(2)
    if not isinstance(values, Owned) or ids != values or count is None or count != values.owners.size:
        return None
    owners = values.owners

    def sum_up(rank: int, rows: tf.Tensor, names: tf.Tensor) -> tf.Tensor:
        return tf.math.unsorted_segment_sum(rows, _local(owners, rank, names), int(owners.sizes[rank]))

    return [node.computed(sum_up, node.inputs[:2], owners, owners)]


def unique(node: Node) -> list[Value] | None:
    """Unique of the row numbers of a sparse gradient: each owner finds which of its rows it has."""
    ids = node.inputs[0]
    if not (isinstance(ids.layout, Owned) and ids.row_numbers) or node.op.name in node.walk.must_be_whole:
        return None
    layout = Owned(ids.layout.owners, f"{ids.layout.gradient} {node.op.name}")
    different, places = node.run([node.own(0)], [layout, ids.layout])
    different.row_numbers, places.places = True, layout
    return [different, places]


def _summed_by_unique(node: Node) -> list[Value]:
    """Adds up the rows of a sparse gradient that have the same row number."""
    values, places, _ = node.inputs
    if values.layout != places.layout or not _is_count_of(node.op.made.inputs[2].op, node.op.made.inputs[1].op):
        raise MustBeWholeError(places)
    layout = places.places
    assert layout is not None

    def sum_up(_: int, rows: tf.Tensor, where: tf.Tensor) -> tf.Tensor:
        # All numbers up to the largest are there; of no numbers the largest is less than -1.
        return tf.math.unsorted_segment_sum(rows, where, tf.maximum(tf.reduce_max(where) + 1, 0))

    return [node.computed(sum_up, [values, places], layout, layout)]


def _is_count_of(operation: Any, unique: Any) -> bool:
    """Whether an operation returns how many different entries another one found."""
    if operation.type == "StridedSlice":
        operation = operation.inputs[0].op
    return operation.type in ("Shape", "Size") and operation.inputs[0].name == unique.outputs[0].name


def updated(node: Node) -> list[Value] | None:
    """ResourceScatterNdAdd and similar, ResourceSparseApply of all optimizers: each worker updates its own rows.

    The indices of the former are a column; see `fdt.program.checked_writes`.
    """
    arguments = [argument.name for argument in node.op.made.op_def.input_arg]
    ids = arguments.index("indices")
    rows = next(place for place, name in enumerate(arguments) if name in ("grad", "updates"))
    handles = [place for place, value in enumerate(node.inputs) if value.handle is not None]
    owners = node.layouts[handles[0]]
    if not isinstance(owners, Divided) or any(node.layouts[place] != owners for place in handles):
        return None
    values, names = node.inputs[rows], node.inputs[ids]
    if names.shape is None or (len(names.shape) > 1 and names.shape[1:] != (1,)):
        return None
    if isinstance(names.layout, Owned) and names.layout.owners == owners and values.layout == names.layout:
        given = {rows: node.own(rows), ids: node.own(ids)}
    else:
        own = node.walk.computed(
            partial(_kept, owners), [node.held(rows, WHOLE), node.held(ids, WHOLE)], ("kept", owners), 2
        )
        given = dict(zip((rows, ids), own, strict=True))
    own_ids = loose(names, given[ids])
    (given[ids],) = node.walk.computed(partial(_local, owners), [own_ids], ("local", owners))
    given |= {place: node.own(place) for place in handles}
    inputs = [given[place] if place in given else node.whole(place) for place in range(len(node.inputs))]
    for place in range(node.num_local):
        node.emit([each[place] for each in inputs])
    return []


def updated_in_one_pass(node: Node) -> list[Value] | None:
    """FdtUpdateTableVariables: each worker updates its rows, given the gradients' rows for them."""
    number = node.attr("N")
    handles = [place for place, value in enumerate(node.inputs) if value.handle is not None]
    owners, names = node.layouts[handles[0]], node.inputs[number]
    if not isinstance(owners, Divided) or any(node.layouts[place] != owners for place in handles):
        return None
    given = {place: node.own(place) for place in handles}
    if (
        isinstance(names.layout, Owned)
        and names.layout.owners == owners
        and set(node.layouts[:number]) == {names.layout}
    ):
        given |= {place: node.own(place) for place in range(number + 1)}
    else:
        ids = node.held(number, WHOLE)
        for place in range(number):
            both = [node.held(place, WHOLE), ids]
            given[place], given[number] = node.walk.computed(partial(_kept, owners), both, ("kept", owners), 2)
    (given[number],) = node.walk.computed(partial(_local, owners), [loose(names, given[number])], ("local", owners))
    inputs = [given[place] if place in given else node.whole(place) for place in range(len(node.inputs))]
    for place in range(node.num_local):
        node.emit([each[place] for each in inputs])
    return []


# Row numbers are row numbers afterwards.
_PASSING = frozenset({"Identity", "IdentityN", "Cast"})

# ---- computations on rows -------------------------------------------------------------------------------------------


def _by_entry(node: Node) -> list[Value] | None:
    """Entry by entry, of the rows of one gradient, and of what is the same for each of its rows."""
    layout = next(layout for layout in node.layouts if isinstance(layout, Owned))
    rank = max(len(value.shape or ()) for value in node.inputs)
    for value in node.inputs:
        if value.layout == layout:
            fits = len(value.shape or ()) == rank
        else:
            fits = value.shape is not None and (len(value.shape) < rank or (rank > 0 and value.shape[0] == 1))
            fits = fits and value.layout == WHOLE
        if not fits:
            return None
    made = node.run([node.own(i) for i in range(len(node.inputs))], layout)
    if node.op.type in _PASSING:
        for given, value in zip(node.inputs, made, strict=True):
            value.row_numbers = given.row_numbers
    return made


def _reduced(node: Node) -> list[Value] | None:
    """Sums, means and extremes over rows, each of which one worker holds."""
    layout, rank = node.layouts[0], node.rank_of(0)
    assert isinstance(layout, Owned)
    if node.op.type == "L2Loss":
        return node.run([node.own(0)], PARTIAL)
    axes = node.constant(1)
    if axes is None or not rank:
        return None
    over = {int(axis) % rank for axis in np.ravel(axes)}
    if 0 not in over:
        return node.run([node.own(0), node.whole(1)], layout)
    if node.op.type == "Sum":
        return node.run([node.own(0), node.whole(1)], PARTIAL)
    if node.op.type in elementwise.COMBINE_OF:
        return node.run([node.own(0), node.whole(1)], Partial(elementwise.COMBINE_OF[node.op.type]))
    return None


def _shaped(node: Node) -> list[Value] | None:
    """BroadcastTo rows' own shape; StridedSlice and ExpandDims that make ids a column."""
    (given, *_), shape, layout = node.inputs, node.inputs[0].shape, node.layouts[0]
    if shape is None or not isinstance(layout, Owned) or node.shapes[0] is None:
        return None
    if node.op.type == "BroadcastTo" and node.shapes[0] == shape:
        return [given]
    if node.op.type != "BroadcastTo" and node.shapes[0] == (*shape, 1):
        return [node.computed(lambda _, rows: rows[..., None], [given], layout, "column")]
    return None


def _first_of(own: Rule, other: Rule) -> Rule:
    """Returns a rule for operations on rows of gradients, which leaves all others to another rule."""

    def rule(node: Node) -> list[Value] | None:
        return (own if any(isinstance(layout, Owned) for layout in node.layouts) else other)(node)

    return rule


def _or(own: Rule, other: Callable[..., Any]) -> Rule:
    return lambda node: own(node) or other(node)


_UPDATING = (
    *(f"ResourceScatterNd{kind}" for kind in ("Add", "Sub", "Min", "Max", "Update")),
    *(
        f"ResourceSparseApply{kind}"
        for kind in (
            "Adadelta Adagrad AdagradV2 AdagradDA CenteredRMSProp Ftrl FtrlV2 KerasMomentum Momentum ProximalAdagrad "
            "ProximalGradientDescent RMSProp"
        ).split()
    ),
)


def rules() -> dict[str, object]:
    """Returns the rules of this file by operation."""
    of_entries, of_sums = elementwise.rules(), reductions.rules()
    table: dict[str, object] = {name: _first_of(_by_entry, cast(Rule, of_entries[name])) for name in sorted(BY_ENTRY)}
    table |= {name: _first_of(_reduced, cast(Rule, of_sums[name])) for name in sorted(REDUCING)}
    of_indices, of_shapes = indexing.rules(), slices.rules() | shaping.rules()
    table |= {
        name: _first_of(_shaped, cast(Rule, of_shapes[name])) for name in ("BroadcastTo", "ExpandDims", "StridedSlice")
    }
    table |= {name: _or(looked_up, cast(Rule, of_indices[name])) for name in ("GatherV2", "Gather", "ResourceGather")}
    table["UnsortedSegmentSum"] = _first_of(summed, cast(Rule, of_indices["UnsortedSegmentSum"]))
    table["FdtUpdateTableVariables"] = updated_in_one_pass
    table["Unique"] = unique
    return table | dict.fromkeys(_UPDATING, updated)
