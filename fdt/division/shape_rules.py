"""Rules for the shapes of operations' outputs: how an output's dimensions follow from its inputs'."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from fdt.division.kinds import BROADCASTING, DRAWING, UNARY
from fdt.division.slice_shapes import strided
from fdt.program.layout import Divided
from fdt.program.size import Dim, Size, is_number, product, value_of
from fdt.program.value import Shape

if TYPE_CHECKING:
    from fdt.division.walker import Node

Dims = tuple[Dim | None, ...]
# Returns an output's shape, or one for each output; None if it is not known how it follows from the inputs' shapes.
Of = Callable[["Node"], Shape | list[Shape] | None]


def same(one: Dim, other: Dim) -> bool:
    """Whether two sizes are equal; a condition if they are so for this batch, and could differ in others."""
    return one is other or (value_of(one) == value_of(other) and bool(one == other))


def _shape(node: "Node", index: int) -> Dims:
    """Returns an input's shape.

    Raises:
        _UnknownError: Its rank is not known.
    """
    shape = node.inputs[index].shape
    if shape is None:
        raise _UnknownError
    return shape


class _UnknownError(Exception):
    pass


def _given(node: "Node", index: int) -> list[Any]:
    """Returns an input's elements, numbers and sizes.

    Raises:
        _UnknownError: They are not known.
    """
    known = node.inputs[index].elements_known
    if known is None:
        raise _UnknownError
    return [each if isinstance(each, Size) else int(each) for each in known.astype(object).flat]


def broadcast(*shapes: Dims) -> Iterator[Dim | None]:
    """Yields the sizes of the shape to which shapes are broadcast."""
    rank = max(map(len, shapes))
    for dims in zip(*((1,) * (rank - len(shape)) + tuple(shape) for shape in shapes), strict=True):
        found: Dim | None = 1
        for size in dims:
            if size is None or found is None:
                found = None
            elif is_number(found) and found == 1:
                found = size
            elif not (is_number(size) and size == 1) and not same(found, size):
                # One of both is 1 for this batch.
                found = size if found == 1 else found
        yield found


def _product(terms: Sequence[str], result: str, inputs: Sequence[Dims]) -> Dims:
    sizes = {
        letter: size
        for term, shape in zip(terms, inputs, strict=True)
        for letter, size in zip(term, shape, strict=True)
    }
    return tuple(sizes[letter] for letter in result)


def _matrices(node: "Node") -> Shape:
    a, b = _shape(node, 0), _shape(node, 1)
    return a[1 if node.attr("transpose_a") else 0], b[0 if node.attr("transpose_b") else 1]


def _batches_of_matrices(node: "Node") -> Shape:
    a, b = _shape(node, 0), _shape(node, 1)
    return (*broadcast(a[:-2], b[:-2]), a[-1 if node.attr("adj_x") else -2], b[-2 if node.attr("adj_y") else -1])


def _einsum(node: "Node") -> Shape:
    equation = node.attr("equation").decode().replace(" ", "")
    if "." in equation or "->" not in equation:
        return None
    given, result = equation.split("->")
    return _product(given.split(","), result, [_shape(node, i) for i in range(len(node.inputs))])


def _kept(index: int = 0) -> Of:
    return lambda node: [_shape(node, index)] * len(node.op.outputs)


def _of_elements(index: int) -> Of:
    return lambda node: tuple(_given(node, index))


def _bitcast(node: "Node") -> Shape:
    return _shape(node, 0) if node.inputs[0].dtype.size == node.op.outputs[0].dtype.size else None


def _without_axes(node: "Node") -> Shape:
    shape = _shape(node, 0)
    axes = {axis % len(shape) for axis in _given(node, 1)} if shape else set()
    if node.attr("keep_dims"):
        return tuple(1 if dim in axes else size for dim, size in enumerate(shape))
    return tuple(size for dim, size in enumerate(shape) if dim not in axes)


def _without_axis(node: "Node") -> Shape:
    shape = _shape(node, 0)
    (axis,) = _given(node, 1)
    return tuple(size for dim, size in enumerate(shape) if dim != axis % len(shape))


def _reshaped(node: "Node") -> Shape:
    before, after = _shape(node, 0), _given(node, 1)
    if any(is_number(size) and size == -1 for size in after):
        known = [size for size in before if size is not None]
        if len(known) < len(before):
            return tuple(None if is_number(size) and size == -1 else size for size in after)
        place = next(i for i, size in enumerate(after) if is_number(size) and size == -1)
        rest = product(size for i, size in enumerate(after) if i != place)
        after[place] = product(known) // rest
    return tuple(after)


def _numbers(shape: Dims) -> list[int | None]:
    return [None if size is None else value_of(size) for size in shape]


def _expanded(node: "Node") -> Shape:
    shape, (axis,) = list(_shape(node, 0)), _given(node, 1)
    shape.insert(axis % (len(shape) + 1), 1)
    return tuple(shape)


def _squeezed(node: "Node") -> Shape:
    shape = _shape(node, 0)
    named = {axis % len(shape) for axis in node.attr("squeeze_dims")}
    if not named:
        if None in _numbers(shape):
            return None
        named = {dim for dim, size in enumerate(shape) if size == 1}
    return tuple(size for dim, size in enumerate(shape) if dim not in named)


def _transposed(node: "Node") -> Shape:
    shape = _shape(node, 0)
    return tuple(shape[dim] for dim in _given(node, 1))


def _packed(node: "Node") -> Shape:
    shape = list(_shape(node, 0))
    shape.insert(node.attr("axis") % (len(shape) + 1), len(node.inputs))
    return tuple(shape)


def _unpacked(node: "Node") -> list[Shape]:
    shape = list(_shape(node, 0))
    del shape[node.attr("axis") % len(shape)]
    return [tuple(shape)] * len(node.op.outputs)


def _concatenated(node: "Node") -> Shape:
    (axis,) = _given(node, len(node.inputs) - 1)
    inputs = [_shape(node, i) for i in range(len(node.inputs) - 1)]
    along = axis % len(inputs[0])
    sizes = [shape[along] for shape in inputs]
    whole = None if any(size is None for size in sizes) else sum(size for size in sizes if size is not None)
    return (*inputs[0][:along], whole, *inputs[0][along + 1 :])


def _parted(node: "Node") -> list[Shape]:
    data, at = (0, 2) if node.op.type == "SplitV" else (1, 0)
    shape, (axis,), count = _shape(node, data), _given(node, at), len(node.op.outputs)
    along = axis % len(shape)
    size = shape[along]
    if size is None:
        raise _UnknownError
    sizes = _given(node, 1) if node.op.type == "SplitV" else [size // count] * count
    rest = size - sum(each for each in sizes if not (is_number(each) and each == -1))
    sizes = [rest if is_number(each) and each == -1 else each for each in sizes]
    return [(*shape[:along], each, *shape[along + 1 :]) for each in sizes]


def _gathered_shape(node: "Node") -> Shape:
    data, indices = _shape(node, 0), _shape(node, 1)
    axis = _given(node, 2)[0] % len(data) if len(node.inputs) > 2 else 0
    batch_dims = node.attr("batch_dims") if node.op.type == "GatherV2" else 0
    batch_dims = batch_dims % (len(indices) + 1) if batch_dims < 0 else batch_dims
    return (*data[:axis], *indices[batch_dims:], *data[axis + 1 :])


def _rows_of_variable(node: "Node") -> Shape:
    shape = node.op.outputs[0].shape
    indices = _shape(node, 1)
    return None if shape is None or node.attr("batch_dims") else (*indices, *shape[len(indices) :])


def _gathered_places(node: "Node") -> Shape:
    data, indices = _shape(node, 0), _shape(node, 1)
    return None if not is_number(indices[-1]) else (*indices[:-1], *data[indices[-1] :])


def _segments(node: "Node") -> Shape:
    data, ids, (count,) = _shape(node, 0), _shape(node, 1), _given(node, 2)
    return (count, *data[len(ids) :])


def _padded(node: "Node") -> Shape:
    shape, paddings = _shape(node, 0), _given(node, 1)
    return tuple(
        None if size is None else size + paddings[2 * dim] + paddings[2 * dim + 1] for dim, size in enumerate(shape)
    )


def _tiled(node: "Node") -> Shape:
    pairs = zip(_shape(node, 0), _given(node, 1), strict=True)
    return tuple(None if size is None else size * by for size, by in pairs)


def _one_hot(node: "Node") -> Shape:
    shape, (depth,) = list(_shape(node, 0)), _given(node, 1)
    axis = node.attr("axis")
    shape.insert(len(shape) if axis == -1 else axis, depth)
    return tuple(shape)


def _plain_slice(node: "Node") -> Shape:
    shape, begin, sizes = _shape(node, 0), _given(node, 1), _given(node, 2)
    return tuple(
        size if not (is_number(size) and size == -1) else None if whole is None else whole - first
        for whole, first, size in zip(shape, begin, sizes, strict=True)
    )


def _convolved(node: "Node") -> Shape:
    """Conv2D, MaxPool and their like: windows of a fixed size along the dimensions of an image."""
    form = node.attr("data_format").decode()
    kind = node.op.type
    is_pool = "Pool" in kind
    shape = _shape(node, 0)
    strides, padding = node.attr("strides"), node.attr("padding")
    if padding == b"EXPLICIT" or (not is_pool and kind not in ("Conv2D", "Conv3D", "DepthwiseConv2dNative")):
        return None
    windows = node.attr("ksize") if is_pool else _windows(node, form)
    if windows is None:
        return None
    found: list[Dim | None] = []
    for dim, (letter, size) in enumerate(zip(form, shape, strict=True)):
        if letter == "C":
            found.append(size if is_pool else (node.op.outputs[0].shape or (None,) * len(form))[dim])
        elif letter == "N" or size is None:
            found.append(size)
        else:
            room = size if padding == b"SAME" else size - windows[dim] + 1
            found.append((room + strides[dim] - 1) // strides[dim])
    return tuple(found)


def _windows(node: "Node", form: str) -> list[int] | None:
    weights, dilations = _shape(node, 1), node.attr("dilations")
    places = iter(weights[: len(form) - 2])
    found = []
    for dim, letter in enumerate(form):
        width = 1 if letter in "NC" else next(places)
        if not is_number(width):
            return None
        found.append((int(width) - 1) * dilations[dim] + 1)  # type: ignore[arg-type]
    return found


def _normalized(index: int) -> Of:
    """FusedBatchNorm: the first output is as the input; the others have a number for each channel."""
    return lambda node: [_shape(node, index), *(output.shape for output in node.op.outputs[1:])]


def _row_losses(node: "Node") -> list[Shape]:
    shape = (
        tuple(broadcast(_shape(node, 0), _shape(node, 1))) if not node.op.type.startswith("Sparse") else _shape(node, 0)
    )
    return [shape[:1], shape]


def _constant_shape(node: "Node") -> list[Shape]:
    """The outputs' shapes are the same for all batches."""
    return [output.shape for output in node.op.outputs]


def _range_shape(node: "Node") -> Shape:
    (start,), (limit,), (delta,) = (_given(node, i) for i in range(3))
    # Rounded up.
    return (-((start - limit) // delta),)


def _top(node: "Node") -> list[Shape] | None:
    shape = _shape(node, 0)
    (count,) = _given(node, 1) if node.op.type == "TopKV2" else (node.attr("k"),)
    return [(*shape[:-1], count)] * 2


def _resized(node: "Node") -> Shape:
    shape = _shape(node, 0)
    return (shape[0], *_given(node, 1), shape[3])


def _listed(first: int, element: int) -> Of:
    """Returns a function for an operation that puts tensors into a list.

    Elements of a list have the same sizes for all batches, except along the dimension along which workers have their own.

    Args:
        first: The dimension of the input at which the elements' begin.
        element: The input.
    """

    def of(node: "Node") -> list[Shape]:
        value, listed = node.inputs[element], node.inputs[0]
        layout = value.layout if listed.dtype != tf.variant or listed.remake is not None else listed.layout
        own = None if not isinstance(layout, Divided) else layout.dim + (first if listed.dtype == tf.variant else 0)
        for dim, size in enumerate(_shape(node, element)):
            if dim >= first and dim != own and isinstance(size, Size):
                int(size)
        return [output.shape for output in node.op.outputs]

    return of


def _safe(of: Of) -> Of:
    """Makes a function return None where something that it needs is not known."""

    def found(node: "Node") -> Shape | list[Shape] | None:
        try:
            return of(node)
        except _UnknownError:
            return None

    return found


_ALL: dict[tuple[str, ...], Of] = {
    tuple(UNARY): _kept(),
    tuple(BROADCASTING): lambda node: tuple(broadcast(*(_shape(node, i) for i in range(len(node.inputs))))),
    ("Identity", "StopGradient", "PreventGradient", "Snapshot", "Cast", "ZerosLike", "Neg", "Conj",
     "EnsureShape", "BiasAdd", "Softmax", "LogSoftmax", "ReverseV2", "Cumsum", "Cumprod", "CumulativeLogsumexp", "Roll",
     "MatrixBandPart", "LRN", "LRNGrad", "MaxPoolGrad", "MaxPoolGradV2", "MaxPool3DGrad",
     "MatrixSetDiagV3"): _kept(),
    ("LookupTableFindV2", "Select", "ResizeBilinearGrad", "ResizeBicubicGrad"): _kept(1),
    ("Bitcast",): _bitcast,
    ("IdentityN",): lambda node: [value.shape for value in node.inputs],
    ("MatMul",): _matrices,
    ("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"): _batches_of_matrices,
    ("Einsum",): _einsum,
    ("Sum", "Mean", "Max", "Min", "All", "Any", "Prod", "EuclideanNorm", "ReduceJoin"): _without_axes,
    ("ArgMax", "ArgMin"): _without_axis,
    ("Reshape",): _reshaped,
    ("ExpandDims",): _expanded,
    ("Squeeze",): _squeezed,
    ("Transpose",): _transposed,
    ("Pack",): _packed,
    ("Unpack",): _unpacked,
    ("ConcatV2",): _concatenated,
    ("Split", "SplitV"): _parted,
    ("GatherV2", "Gather"): _gathered_shape,
    ("ResourceGather",): _rows_of_variable,
    ("GatherNd",): _gathered_places,
    ("UnsortedSegmentSum", "UnsortedSegmentMax", "UnsortedSegmentMin"): _segments,
    ("SegmentSum", "SegmentMean", "SegmentMax", "SegmentMin", "SegmentProd", "SparseSegmentSum", "SparseSegmentMean",
     "SparseSegmentSqrtN"): lambda node: (None, *_shape(node, 0)[1:]),
    ("Where",): lambda node: (None, len(_shape(node, 0))),
    ("Pad", "PadV2", "MirrorPad"): _padded,
    ("TensorListFromTensor",): _listed(1, 0),
    ("TensorListSetItem",): _listed(0, 2),
    ("TensorListPushBack",): _listed(0, 1),
    ("Tile",): _tiled,
    ("OneHot",): _one_hot,
    ("Slice",): _plain_slice,
    ("StridedSlice",): lambda node: strided(node, _shape(node, 0)),
    ("BroadcastTo",): _of_elements(1),
    ("Fill", "StridedSliceGrad", "Conv2DBackpropInput", "Conv3DBackpropInputV2", "DepthwiseConv2dNativeBackpropInput",
     "AvgPoolGrad", "AvgPool3DGrad",
     *(name for name in DRAWING if not name.startswith(("Stateful", "RandomGamma", "RandomPoisson")))): _of_elements(0),
    tuple(name for name in DRAWING if name.startswith("Stateful")): _of_elements(2),
    ("ScatterNd",): _of_elements(2),
    ("Conv2DBackpropFilter", "Conv3DBackpropFilterV2", "DepthwiseConv2dNativeBackpropFilter"): _of_elements(1),
    ("Conv2D", "Conv3D", "DepthwiseConv2dNative", "MaxPool", "MaxPool3D", "AvgPool", "AvgPool3D"): _convolved,
    ("FusedBatchNormV3",): _normalized(0),
    ("FusedBatchNormGradV3",): _normalized(1),
    ("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"): _row_losses,
    ("InTopKV2", "InTopK"): lambda node: _shape(node, 1),
    ("TopK", "TopKV2"): _top,
    ("ResizeBilinear", "ResizeNearestNeighbor", "ResizeBicubic", "ResizeArea"): _resized,
    ("Range",): _range_shape,
    ("L2Loss", "BiasAddGrad", "Shape", "ShapeN", "Size", "Rank", "VariableShape", "BroadcastGradientArgs",
     "Assert", "TensorListLength",
     "TensorListReserve", "EmptyTensorList", "TensorListElementShape", "TensorListGetItem", "TensorListStack",
     "TensorListPopBack"): _constant_shape,
}  # fmt: skip
RULES: dict[str, Of] = {name: _safe(of) for names, of in _ALL.items() for name in names}
