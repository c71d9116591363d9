"""Rules for operations that gather entries, and for those that scatter them."""

from fdt.division.walker import Node
from fdt.program.layout import PARTIAL, WHOLE, Combine, Divided, Partial
from fdt.program.value import Value


def gather(node: Node) -> list[Value] | None:
    """GatherV2 and Gather: rows of a whole table by divided indices, or other dimensions of a divided one by whole indices."""
    data, indices = node.layouts[0], node.layouts[1]
    axis_given = node.constant(2) if len(node.inputs) > 2 else 0
    ranks = node.rank_of(0), node.rank_of(1)
    if axis_given is None or ranks[0] is None or ranks[1] is None:
        return None
    batch_dims = node.attr("batch_dims") if node.op.type == "GatherV2" else 0
    batch_dims = batch_dims % (ranks[1] + 1) if batch_dims < 0 else batch_dims
    axis = int(axis_given) % ranks[0]
    rest = [node.whole(i) for i in range(2, len(node.inputs))]
    if isinstance(data, Divided):
        if data.dim < batch_dims:
            return node.run([node.own(0), node.local(1, data), *rest], data)
        if data.dim == axis:
            return None
        place = data.dim if data.dim < axis else data.dim + ranks[1] - batch_dims - 1
        return node.run([node.own(0), node.whole(1), *rest], data.at(place))
    if data == PARTIAL and indices == WHOLE:
        return node.run([node.own(0), node.whole(1), *rest], PARTIAL)
    if not isinstance(indices, Divided):
        return None
    if indices.dim < batch_dims:
        return node.run([node.local(0, indices), node.own(1), *rest], indices)
    return node.run([node.whole(0), node.own(1), *rest], indices.at(axis + indices.dim - batch_dims))


def gather_nd(node: Node) -> list[Value] | None:
    """GatherNd: from a whole tensor by divided indices."""
    indices, rank = node.layouts[1], node.rank_of(1)
    if not isinstance(indices, Divided) or rank is None or indices.dim == rank - 1:
        return None
    return node.run([node.whole(0), node.own(1)], indices)


def rows_of_variable(node: Node) -> list[Value] | None:
    """ResourceGather: rows of a variable by divided indices."""
    indices = node.layouts[1]
    if not isinstance(indices, Divided) or node.layouts[0] != WHOLE or node.attr("batch_dims"):
        return None
    return node.run([node.own(0), node.own(1)], indices)


_SEGMENTS = {
    "UnsortedSegmentSum": PARTIAL,
    "UnsortedSegmentMax": Partial(Combine.MAX),
    "UnsortedSegmentMin": Partial(Combine.MIN),
}


def segments(node: Node) -> list[Value] | None:
    """UnsortedSegmentSum, -Max, -Min: each worker reduces its rows to a partial result for every segment."""
    rows = next((v for v in node.layouts[:2] if isinstance(v, Divided) and v.dim == 0), None)
    if rows is None:
        return None
    return node.run([node.local(0, rows), node.local(1, rows), node.whole(2)], _SEGMENTS[node.op.type])


def counted(node: Node) -> list[Value] | None:
    """DenseBincount(input, size, weights): divided by rows for a matrix, else a partial sum of the counts."""
    layout, rank = node.layouts[0], node.rank_of(0)
    if not isinstance(layout, Divided) or rank is None or layout.dim or (rank == 1 and node.attr("binary_output")):
        return None
    weights = node.inputs[2].shape
    if weights is None:
        return None
    given = node.whole(2) if 0 in weights else node.local(2, layout)
    return node.run([node.own(0), node.whole(1), given], layout if rank == 2 else PARTIAL)


def scattered(node: Node) -> list[Value] | None:
    """ScatterNd: each worker adds up its rows, which gives a partial sum."""
    rows = next((v for v in node.layouts[:2] if isinstance(v, Divided) and v.dim == 0), None)
    if rows is None:
        return None
    return node.run([node.local(0, rows), node.local(1, rows), node.whole(2)], PARTIAL)


def table_rows(node: Node) -> list[Value] | None:
    """LookupTableFindV2: each key by itself."""
    keys = node.layouts[1]
    if not isinstance(keys, Divided):
        return None
    return node.run([node.own(0), node.own(1), node.whole(2)], keys)


def rules() -> dict[str, object]:
    """Returns the rules of this file by operation."""
    return {
        "GatherV2": gather, "Gather": gather, "GatherNd": gather_nd, "ResourceGather": rows_of_variable,
        **dict.fromkeys(_SEGMENTS, segments), "DenseBincount": counted, "ScatterNd": scattered, "LookupTableFindV2": table_rows,
    }  # fmt: skip
