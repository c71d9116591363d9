"""Rules for products of matrices and tensors: a contraction over the divided dimension is partial."""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from fdt.division.walker import Node
from fdt.program.body import Wire
from fdt.program.layout import PARTIAL, WHOLE, Divided, Layout
from fdt.program.matrix_products import most_rows
from fdt.program.size import value_of
from fdt.program.value import Value


def contracted(node: Node, terms: Sequence[str], result: str) -> list[Value] | None:
    """Divides a contraction.

    Args:
        node: The contraction.
        terms: For each input one letter per dimension, as in an equation of `tf.einsum`.
        result: One letter per dimension of the output.
    """
    if PARTIAL in node.layouts and not any(isinstance(layout, Divided) for layout in node.layouts):
        linear = node.layouts.count(PARTIAL) == 1 and not node.walk.has(node.inputs[node.layouts.index(PARTIAL)], WHOLE)
        return node.run([node.own(i) for i in range(len(terms))], PARTIAL) if linear else None
    chosen = _chosen(node, terms)
    if chosen is None:
        return None
    letter, divided = chosen
    inputs = []
    for index, term in enumerate(terms):
        layout: Layout = divided.at(term.index(letter)) if letter in term else WHOLE
        inputs.append(node.local(index, layout))
    return node.run(inputs, divided.at(result.index(letter)) if letter in result else PARTIAL)


def _chosen(node: Node, terms: Sequence[str]) -> tuple[str, Divided] | None:
    """Returns the letter of the dimension along which the largest divided input is divided, and its layout."""
    found = []
    for index, term in enumerate(terms):
        layout = node.layouts[index]
        if not isinstance(layout, Divided):
            continue
        letter = term[layout.dim]
        places = [(i, other.index(letter)) for i, other in enumerate(terms) if letter in other]
        sizes = [(node.inputs[i].shape or (None,) * (d + 1))[d] for i, d in places]
        if all(size is not None and size == layout.size for size in sizes) and term.count(letter) == 1:
            found.append((node.inputs[index].num_bytes, -index, letter, layout))
    best = max(found, default=None, key=lambda each: each[:2])
    return None if best is None else best[2:]


def matrices(node: Node) -> list[Value] | None:
    """MatMul."""
    if _is_faster_turned(node):
        node.walk.count(node.op, is_divided=True)
        return [node.computed(_turned, [node.inputs[0], node.held(1, WHOLE)], node.layouts[0], "turned")]
    terms = ["km" if node.attr("transpose_a") else "mk", "nk" if node.attr("transpose_b") else "kn"]
    return contracted(node, terms, "mn")


def _is_faster_turned(node: Node) -> bool:
    """Whether each worker has so few rows of A, in A Bᵀ, that its CPU computes (B Aᵀ)ᵀ faster."""
    rows, shape = node.layouts[0], node.inputs[1].shape
    if not node.walk.exchange.on_cpu or not node.attr("transpose_b") or node.attr("transpose_a"):
        return False
    if not isinstance(rows, Divided) or rows.dim != 0 or isinstance(node.layouts[1], Divided):
        return False
    if node.inputs[0].dtype not in (tf.float32, tf.float64):
        return False
    length, depth = shape or (None, None)
    if length is None or depth is None:
        return False
    return bool(max(map(value_of, rows.sizes)) <= most_rows(value_of(length), value_of(depth)))


def _turned(_: int, a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    return tf.transpose(tf.matmul(b, a, transpose_b=True))


def batches_of_matrices(node: Node) -> list[Value] | None:
    """BatchMatMulV2 and V3: leading dimensions broadcast."""
    ranks = [node.rank_of(0), node.rank_of(1)]
    if ranks[0] is None or ranks[1] is None:
        return None
    terms = ["km" if node.attr("adj_x") else "mk", "nk" if node.attr("adj_y") else "kn"]
    leading = max(ranks[0], ranks[1]) - 2
    letters = "abcdefgh"[:leading]
    for i, rank in enumerate((ranks[0], ranks[1])):
        own = letters[leading - (rank - 2) :]
        shape = node.inputs[i].shape or ()
        # A dimension of size 1 is broadcast, so it gets a letter of its own.
        terms[i] = (
            "".join("ABCDEFGH"[leading - (rank - 2) + d] if shape[d] == 1 else own[d] for d in range(rank - 2))
            + terms[i]
        )
    result = "".join(letter if any(letter in term for term in terms) else letter.upper() for letter in letters) + "mn"
    chosen = _chosen(node, terms)
    if chosen is not None and _is_behind_a_broadcast(chosen[0], letters, terms):
        return None
    return contracted(node, terms, result)


def _is_behind_a_broadcast(letter: str, letters: str, terms: Sequence[str]) -> bool:
    """Whether matrices are broadcast along a dimension before that one.

    Where a worker then has one matrix, [6, 1, m, k] by [1, 1, k, n], TensorFlow's kernel on processors with AVX-512 reads and
    writes other memory (TensorFlow 2.18 to 2.21, its issue 117700).
    """
    before = letters[: letters.index(letter)] if letter in letters else ""
    return any(each not in term for each in before for term in terms)


def einsum(node: Node) -> list[Value] | None:
    """Einsum, without an ellipsis."""
    equation = node.attr("equation").decode().replace(" ", "")
    if "." in equation or "->" not in equation:
        return None
    given, result = equation.split("->")
    return contracted(node, given.split(","), result)


def solved(node: Node) -> list[Value] | None:
    """MatrixSolve, MatrixTriangularSolve(matrix, rhs): each right-hand side by itself."""
    layout, rank = next((v for v in node.layouts[::-1] if isinstance(v, Divided)), None), node.rank_of(1)
    if layout is None or rank is None or rank != node.rank_of(0):
        return None
    if layout.dim < rank - 2:
        return node.run([node.local(0, layout), node.local(1, layout)], layout)
    if node.layouts[1] == layout and layout.dim == rank - 1:
        return node.run([node.whole(0), node.own(1)], layout)
    return None


# ---- convolutions and pools: rows of a batch by themselves ----------------------------------------------------------


def rows_of(*data: int, sizes: int | None = None) -> Callable[[Node], list[Value] | None]:
    """Returns a rule for operations whose inputs `data` and output have rows as dimension 0; other inputs are whole.

    Args:
        **data: Indices of these inputs.
        sizes: Index of the input that gives the output's shape.
    """

    def rule(node: Node) -> list[Value] | None:
        rows = _rows(node, data)
        if rows is None:
            return None
        of_rows = [i for i in data if not _is_for_all_rows(node, i, rows)]
        inputs = [node.local(i, rows) if i in of_rows else node.whole(i) for i in range(len(node.inputs))]
        if sizes is not None:
            shape = node.constant(sizes)
            if shape is None or len(shape) < 3 or shape[0] != rows.size:
                return None
            inputs[sizes] = node.constants(sizes, lambda r: [rows.sizes[r], *shape[1:]])
        return run_rows(node, inputs, rows)

    return rule


def _is_for_all_rows(node: Node, index: int, rows: Divided) -> bool:
    """Whether an input has one row, which is used for each, as one transformation for all images."""
    shape = node.inputs[index].shape
    return shape is not None and isinstance(shape[0], int) and shape[0] == 1 and rows.size != 1


def run_rows(node: Node, inputs: Sequence[tuple[Wire, ...]], rows: Divided) -> list[Value] | None:
    """Runs an operation on each worker's rows; a worker without rows gets zeros, since kernels differ for empty inputs."""
    if 0 not in rows.sizes:
        return node.run(inputs, rows)
    outputs = node.op.outputs
    behind = [None if shape is None else [size for size in shape[1:] if size is not None] for shape in node.shapes]
    if any(rest is None or len(rest) < len(shape or ()) - 1 for rest, shape in zip(behind, node.shapes, strict=True)):
        return None
    runs = []
    for place, rank in enumerate(node.walk.exchange.ranks):
        if rows.sizes[rank]:
            runs.append(node.emit([each[place] for each in inputs]))
        else:
            pairs = zip(behind, outputs, strict=True)
            runs.append([node.walk.zeros([0, *(rest or ())], output.dtype) for rest, output in pairs])
    return [node.value(rows, [run[k] for run in runs], k) for k in range(len(outputs))]


def summed_over_rows(*data: int) -> Callable[[Node], list[Value] | None]:
    """Returns a rule for operations that sum over dimension 0 of the inputs `data`: gradients of filters."""

    def rule(node: Node) -> list[Value] | None:
        rows = _rows(node, data)
        if rows is None:
            return None
        inputs = [node.local(i, rows) if i in data else node.whole(i) for i in range(len(node.inputs))]
        if 0 not in rows.sizes:
            return node.run(inputs, PARTIAL)
        # Kernels differ for empty inputs, so a worker without rows gets zeros.
        parts = []
        for place, r in enumerate(node.walk.exchange.ranks):
            own = [given[place] for given in inputs]
            made = node.emit(own)[0] if rows.sizes[r] else None
            parts.append(made)
        shape, dtype = _filter_shape(node), node.op.outputs[0].dtype
        if shape is None:
            return None
        nothing = np.zeros(shape, dtype.as_numpy_dtype)
        return [node.value(PARTIAL, [node.walk.body.constant(nothing) if part is None else part for part in parts])]

    return rule


def _filter_shape(node: Node) -> list[int] | None:
    known = node.constant(1)
    return None if known is None else [int(size) for size in known]


def _rows(node: Node, data: Sequence[int]) -> Divided | None:
    layouts = [node.layouts[i] for i in data if isinstance(node.layouts[i], Divided)]
    if not layouts or any(layout != layouts[0] for layout in layouts):
        return None
    if any(node.inputs[i].shape is None for i in data):
        return None
    rows = layouts[0]
    assert isinstance(rows, Divided)
    return rows if rows.dim == 0 else None


def bias(node: Node) -> list[Value] | None:
    """BiasAdd: the channels are the last dimension, or the second."""
    layout, rank = node.layouts[0], node.rank_of(0)
    if not isinstance(layout, Divided) or rank is None:
        return None
    channels = 1 if node.attr("data_format") == b"NCHW" else rank - 1
    vector = node.local(1, layout.at(0)) if layout.dim == channels else node.whole(1)
    return node.run([node.own(0), vector], layout)


_ROWS_OF: dict[str, Callable[[Node], list[Value] | None]] = {
    "Conv2D": rows_of(0), "Conv3D": rows_of(0), "DepthwiseConv2dNative": rows_of(0), "Conv": rows_of(0),
    "Dilation2D": rows_of(0),
    "Conv2DBackpropInput": rows_of(2, sizes=0), "Conv3DBackpropInputV2": rows_of(2, sizes=0),
    "DepthwiseConv2dNativeBackpropInput": rows_of(2, sizes=0),
    "Dilation2DBackpropInput": rows_of(0, 2),
    "MaxPool": rows_of(0), "MaxPoolV2": rows_of(0), "MaxPool3D": rows_of(0), "AvgPool": rows_of(0), "AvgPool3D": rows_of(0),
    "MaxPoolGrad": rows_of(0, 1, 2), "MaxPoolGradV2": rows_of(0, 1, 2), "MaxPool3DGrad": rows_of(0, 1, 2),
    "MaxPoolGradGrad": rows_of(0, 1, 2), "MaxPool3DGradGrad": rows_of(0, 1, 2),
    "AvgPoolGrad": rows_of(1, sizes=0), "AvgPool3DGrad": rows_of(1, sizes=0),
    "InTopKV2": rows_of(0, 1), "InTopK": rows_of(0, 1),
    "LRN": rows_of(0), "LRNGrad": rows_of(0, 1, 2),
    "ResizeBilinear": rows_of(0), "ResizeNearestNeighbor": rows_of(0), "ResizeBicubic": rows_of(0), "ResizeArea": rows_of(0),
    "ResizeBilinearGrad": rows_of(0, 1), "ResizeNearestNeighborGrad": rows_of(0), "ResizeBicubicGrad": rows_of(0, 1),
    "ImageProjectiveTransformV3": rows_of(0, 1), "ExtractImagePatches": rows_of(0), "ExtractVolumePatches": rows_of(0),
    "AdjustHue": rows_of(0), "AdjustSaturation": rows_of(0), "AdjustContrastv2": rows_of(0), "RGBToHSV": rows_of(0),
    "HSVToRGB": rows_of(0), "DepthToSpace": rows_of(0), "SpaceToDepth": rows_of(0),
}  # fmt: skip


def rules() -> dict[str, object]:
    """Returns the rules of this file by operation."""
    table: dict[str, object] = {
        "MatMul": matrices, "BatchMatMul": batches_of_matrices, "BatchMatMulV2": batches_of_matrices,
        "BatchMatMulV3": batches_of_matrices, "Einsum": einsum, "BiasAdd": bias,
        "MatrixSolve": solved, "MatrixTriangularSolve": solved,
        "Conv2DBackpropFilter": summed_over_rows(0, 2), "Conv3DBackpropFilterV2": summed_over_rows(0, 2),
        "DepthwiseConv2dNativeBackpropFilter": summed_over_rows(0, 2),
    }  # fmt: skip
    table.update(_ROWS_OF)
    return table
