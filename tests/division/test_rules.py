"""Every rule against the undivided operation: random layouts, one to five workers, uneven and empty parts."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fdt.base.native import library
from fdt.division import divide
from fdt.division.divide import Input
from fdt.division.exchange import Alone
from fdt.division.table import RULES
from fdt.program.graphs import described
from fdt.program.layout import PARTIAL, WHOLE, Divided, Layout
from tests.helpers.divided import DividedStep, largest_difference

raw = tf.raw_ops
# Of each rule. More find what these have not: FDT_DIVISION_EXAMPLES=100.
_EXAMPLES = int(os.environ.get("FDT_DIVISION_EXAMPLES", "4"))


@dataclasses.dataclass(frozen=True)
class Case:
    """An operation on inputs of these shapes: "f" floats, "p" positive floats, "i" integers in [0, 3), "b" booleans."""

    apply: Callable[..., Any]
    inputs: tuple[tuple[str, tuple[int, ...]], ...]
    partial: bool = False


def _case(apply: Callable[..., Any], *inputs: tuple[str, tuple[int, ...]], partial: bool = False) -> Case:
    return Case(apply, inputs, partial)


F, M, V, K, B = ("f", (6, 4)), ("f", (4, 5)), ("f", (4,)), ("i", (6, 4)), ("b", (6, 4))
SQUARES = ("f", (6, 3, 3))
IMAGE, FILTER = ("f", (6, 5, 5, 2)), ("f", (3, 3, 2, 3))


def _turned(images: tf.Tensor, by: tf.Tensor) -> tf.Tensor:
    """Images shifted and stretched, each by its own numbers or all by the same."""
    transforms = tf.pad(by, [[0, 0], [0, 6]]) + tf.constant([1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0])
    return raw.ImageProjectiveTransformV3(
        images=images, transforms=transforms, output_shape=[4, 4], fill_value=0.0, interpolation="BILINEAR",
        fill_mode="REFLECT",
    )  # fmt: skip


def _joined(a: tf.Tensor, b: tf.Tensor, w: tf.Tensor) -> list[tf.Tensor]:
    """Two batches one behind the other, as adversarial and contrastive nets have them, taken apart again; and the gradients."""
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([a, b, w])
        both = tf.tanh(tf.concat([a, b, 2.0 * a], 0) @ w)
        first, second, third = tf.split(both, [6, 4, 6])
        wide = tf.reshape(tf.reshape(both, (-1,)), (16, 5))
        parts = [
            both[:6] - third,
            second[1:],
            both[6:10, 1:3],
            both[2::3],
            both[:, -1],
            wide[-6:] * first,
            wide[::-1][:2],
        ]
        value = tf.add_n([tf.reduce_sum(tf.sin(part)) for part in parts]) + tf.reduce_mean(both**2)
    return [both, *parts, value, *tape.gradient(value, [a, b, w])]


CASES: dict[str, Case] = {
    "joined rows": _case(_joined, F, ("f", (4, 4)), M),
    "AddV2 broadcast": _case(tf.add, F, V, partial=True),
    "AddV2 column": _case(tf.add, F, ("f", (6, 1)), partial=True),
    "AddN one row": _case(lambda a, b: tf.add_n([a, b]), ("f", (1, 4)), ("f", (1, 4)), partial=True),
    "ReluGrad one row": _case(lambda a, b: raw.ReluGrad(gradients=a, features=b), ("f", (1, 4)), ("f", (1, 4))),
    "Mul one row": _case(tf.multiply, ("f", (1, 4)), ("f", (4,)), partial=True),
    "Select one row": _case(lambda c, a, b: tf.where(c, a, b), ("b", (1, 4)), ("f", (1, 1)), ("f", (1, 4))),
    "AddN": _case(lambda a, b, c: tf.add_n([a, b, c]), F, F, F, partial=True),
    "Sub": _case(tf.subtract, F, F, partial=True),
    "Mul": _case(tf.multiply, F, V, partial=True),
    "RealDiv": _case(tf.divide, F, ("p", (4,)), partial=True),
    "Exp": _case(tf.exp, F, partial=True),
    "Neg": _case(tf.negative, F, partial=True),
    "Cast": _case(lambda a: tf.cast(a, tf.float64), F, partial=True),
    "Cast down": _case(lambda a: tf.cast(a, tf.int32), F, partial=True),
    "SelectV2": _case(tf.where, B, F, V),
    "Select rows": _case(lambda c, a, b: raw.Select(condition=c, x=a, y=b), ("b", (6,)), F, F),
    "ZerosLike": _case(tf.zeros_like, F, partial=True),
    "Equal": _case(tf.equal, K, ("i", (4,))),
    "LogicalAnd": _case(tf.logical_and, B, B),
    "ClipByValue": _case(lambda a: raw.ClipByValue(t=a, clip_value_min=-0.5, clip_value_max=0.5), F),
    "ReluGrad": _case(lambda a, b: raw.ReluGrad(gradients=a, features=b), F, F, partial=True),
    "Sum rows": _case(lambda a: tf.reduce_sum(a, 0), F, partial=True),
    "Sum all": _case(tf.reduce_sum, F, partial=True),
    "Sum columns": _case(lambda a: tf.reduce_sum(a, -1, keepdims=True), F, partial=True),
    "Mean rows": _case(lambda a: tf.reduce_mean(a, 0, keepdims=True), F, partial=True),
    "Mean all": _case(tf.reduce_mean, F, partial=True),
    "Max": _case(lambda a: tf.reduce_max(a, 0), F, partial=True),
    "Min": _case(lambda a: tf.reduce_min(a, [0, 1]), K),
    "All": _case(lambda a: tf.reduce_all(a, 0), B),
    "Any": _case(tf.reduce_any, B),
    "ReduceJoin": _case(lambda a: tf.strings.length(tf.strings.reduce_join(tf.strings.as_string(a), 1)), K),
    "Prod": _case(lambda a: tf.reduce_prod(a, 0), F),
    "L2Loss": _case(tf.nn.l2_loss, F, partial=True),
    "BiasAddGrad": _case(lambda a: raw.BiasAddGrad(out_backprop=a), IMAGE, partial=True),
    "ArgMax": _case(lambda a: tf.argmax(a, 1), F),
    "ArgMax rows": _case(lambda a: tf.argmax(a, 0), F),
    "Cumsum": _case(lambda a: tf.cumsum(a, 1), F),
    "Roll": _case(lambda a: tf.roll(a, [1, 2], [1, 2]), ("f", (6, 3, 4)), partial=True),
    "Roll rows": _case(lambda a: tf.roll(a, 1, 0), F, partial=True),
    "Softmax": _case(tf.nn.softmax, ("f", (6, 3, 4))),
    "TopKV2": _case(lambda a: tf.math.top_k(a, 2), F),
    "InTopKV2": _case(lambda a, b: tf.math.in_top_k(b, a, 2), F, ("i", (6,))),
    "SparseSoftmaxCrossEntropyWithLogits": _case(
        lambda a, b: raw.SparseSoftmaxCrossEntropyWithLogits(features=a, labels=b), F, ("i", (6,))
    ),
    "SoftmaxCrossEntropyWithLogits": _case(
        lambda a, b: raw.SoftmaxCrossEntropyWithLogits(features=a, labels=b), F, ("p", (6, 4))
    ),
    "Shape": _case(tf.shape, F, partial=True),
    "Size": _case(tf.size, F),
    "Rank": _case(tf.rank, F),
    "Reshape merge": _case(lambda a: tf.reshape(a, (-1, 4)), ("f", (6, 3, 4)), partial=True),
    "Reshape part": _case(lambda a: tf.reshape(a, (3, 2, 4)), F, partial=True),
    "Reshape flat": _case(lambda a: tf.reshape(a, (24,)), F),
    "ExpandDims": _case(lambda a: tf.expand_dims(a, 1), F, partial=True),
    "ExpandDims front": _case(lambda a: tf.expand_dims(a, 0), F),
    "Squeeze": _case(lambda a: tf.squeeze(a, 1), ("f", (6, 1, 4)), partial=True),
    "Squeeze all": _case(tf.squeeze, ("f", (1, 6, 1, 4))),
    "Transpose": _case(lambda a: tf.transpose(a, (2, 0, 1)), ("f", (6, 3, 4)), partial=True),
    "Pack": _case(lambda a, b: tf.stack([a, b], 1), F, F, partial=True),
    "Pack front": _case(lambda a, b: tf.stack([a, b]), F, F, partial=True),
    "Unpack": _case(lambda a: tf.unstack(a, axis=1), F, partial=True),
    "ConcatV2": _case(lambda a, b: tf.concat([a, b], 1), F, ("f", (6, 2))),
    "ConcatV2 rows": _case(lambda a, b: tf.concat([a, b], 0), F, ("f", (2, 4))),
    "Split": _case(lambda a: tf.split(a, 2, 1), F, partial=True),
    "SplitV": _case(lambda a: tf.split(a, [1, 3], 1), F, partial=True),
    "Split rows": _case(lambda a: tf.split(a, 3), F, partial=True),
    "SplitV rows": _case(lambda a: tf.split(a, [1, -1, 2]), F, partial=True),
    "Pad rows": _case(lambda a: tf.pad(a, [[2, 1], [0, 1]]), F, partial=True),
    "PadV2 rows": _case(lambda a: tf.pad(a, [[2, 1], [0, 1]], constant_values=3.0), F),
    "StridedSlice every second row": _case(lambda a: a[1:6:2, :3], F, partial=True),
    "StridedSlice no row": _case(lambda a: a[4:2], F),
    "StridedSlice backwards": _case(lambda a: a[::-1], F, partial=True),
    "StridedSlice from the end": _case(lambda a: a[-4:-1, ..., None], F),
    "StridedSliceGrad rows": _case(
        lambda a: raw.StridedSliceGrad(shape=[11, 4], begin=[0, 0], end=[11, 4], strides=[2, 1], dy=a), F, partial=True
    ),
    "Slice": _case(lambda a: tf.slice(a, [0, 1], [-1, 2]), F, partial=True),
    "Slice rows": _case(lambda a: tf.slice(a, [1, 0], [3, 4]), F),
    "Pad": _case(lambda a: tf.pad(a, [[0, 0], [1, 2]]), F),
    "MirrorPad": _case(lambda a: tf.pad(a, [[0, 0], [1, 2]], "REFLECT"), F),
    "Tile": _case(lambda a: tf.tile(a, [1, 3]), F, partial=True),
    "BroadcastTo": _case(lambda a: tf.broadcast_to(a, (3, 6, 4)), F, partial=True),
    "ReverseV2": _case(lambda a: tf.reverse(a, [1]), F),
    "StridedSlice": _case(lambda a: a[:, 1:3], F, partial=True),
    "StridedSlice last": _case(lambda a: a[..., -1], ("f", (6, 3, 4)), partial=True),
    "StridedSlice new": _case(lambda a: a[:, None, ::2], F),
    "StridedSlice rows": _case(lambda a: a[1:5], F),
    "StridedSlice all rows": _case(lambda a: a[0:6, 1], F),
    "StridedSliceGrad": _case(
        lambda a: raw.StridedSliceGrad(
            shape=[6, 7], begin=[0, 1], end=[0, 5], strides=[1, 1], dy=a, begin_mask=1, end_mask=1
        ),
        F,
        partial=True,
    ),
    "OneHot": _case(lambda a: tf.one_hot(a, 3), K),
    "OneHot front": _case(lambda a: tf.one_hot(a, 3, axis=0), K),
    "MatrixBandPart": _case(lambda a: tf.linalg.band_part(a, 1, 0), ("f", (6, 3, 3))),
    "MatMul": _case(tf.matmul, F, M, partial=True),
    "MatMul transposed": _case(lambda a, b: tf.matmul(a, b, transpose_a=True), F, ("f", (6, 3)), partial=True),
    # Of few rows by many: written in the other order.
    "MatMul turned": _case(lambda a, b: tf.matmul(a, b, transpose_b=True), ("f", (6, 256)), ("f", (24, 256))),
    "MatMul pairs": _case(lambda a: tf.matmul(a, a, transpose_b=True), F),
    "BatchMatMulV2": _case(tf.matmul, ("f", (6, 2, 3)), ("f", (6, 3, 4))),
    "BatchMatMulV2 broadcast": _case(tf.matmul, ("f", (6, 2, 3, 4)), ("f", (1, 2, 4, 5))),
    "BatchMatMulV2 by one": _case(tf.matmul, ("f", (6, 2, 3, 4)), ("f", (4, 5))),
    "Einsum": _case(lambda a, b: tf.einsum("bti,ij->btj", a, b), ("f", (6, 3, 4)), M, partial=True),
    "Einsum contracted": _case(lambda a, b: tf.einsum("bti,btj->ij", a, b), ("f", (6, 3, 4)), ("f", (6, 3, 2))),
    "BiasAdd": _case(tf.nn.bias_add, IMAGE, ("f", (2,))),
    "UnsortedSegmentMax": _case(lambda a, i: tf.math.unsorted_segment_max(a, i, 4), F, ("i", (6,))),
    "UnsortedSegmentMin": _case(lambda a, i: tf.math.unsorted_segment_min(a, i, 3), F, ("i", (6,))),
    "DenseBincount": _case(lambda i: raw.DenseBincount(input=i, size=3, weights=tf.zeros([0])), ("i", (6,))),
    "DenseBincount weighted": _case(
        lambda i, w: raw.DenseBincount(input=i, size=3, weights=w), ("i", (6,)), ("f", (6,))
    ),
    "DenseBincount rows": _case(lambda i: raw.DenseBincount(input=i, size=3, weights=tf.zeros([0])), K),
    "DenseBincount whether": _case(
        lambda i: raw.DenseBincount(input=i, size=3, weights=tf.zeros([0]), binary_output=True), ("i", (6,))
    ),
    "MatrixTriangularSolve": _case(
        lambda a, b: tf.linalg.triangular_solve(4 * tf.eye(4) + 0.1 * tf.linalg.band_part(a, -1, 0), b),
        ("f", (4, 4)),
        ("f", (4, 6)),
    ),
    "MatrixSolve of each": _case(
        lambda a, b: tf.linalg.solve(8.0 * tf.eye(3) + a, b),
        ("f", (6, 3, 3)),
        ("f", (6, 3, 2)),
    ),
    "Conv2D": _case(lambda a, w: tf.nn.conv2d(a, w, 2, "SAME"), IMAGE, FILTER),
    "Conv2DBackpropInput": _case(
        lambda w, d: raw.Conv2DBackpropInput(
            input_sizes=[6, 5, 5, 2], filter=w, out_backprop=d, strides=[1] * 4, padding="VALID"
        ),
        FILTER,
        ("f", (6, 3, 3, 3)),
    ),
    "Conv2DBackpropFilter": _case(
        lambda a, d: raw.Conv2DBackpropFilter(
            input=a, filter_sizes=[3, 3, 2, 3], out_backprop=d, strides=[1] * 4, padding="VALID"
        ),
        IMAGE,
        ("f", (6, 3, 3, 3)),
    ),
    "DepthwiseConv2dNative": _case(
        lambda a, w: tf.nn.depthwise_conv2d(a, w, [1] * 4, "SAME"), IMAGE, ("f", (3, 3, 2, 1))
    ),
    "MaxPool": _case(lambda a: tf.nn.max_pool2d(a, 2, 2, "VALID"), IMAGE),
    "AvgPool": _case(lambda a: tf.nn.avg_pool2d(a, 2, 2, "VALID"), IMAGE),
    "AvgPoolGrad": _case(
        lambda d: raw.AvgPoolGrad(
            orig_input_shape=[6, 4, 4, 2], grad=d, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="VALID"
        ),
        ("f", (6, 2, 2, 2)),
    ),
    "ResizeBilinear": _case(lambda a: tf.image.resize(a, (7, 7)), IMAGE),
    "GatherV2 by rows": _case(tf.gather, ("f", (3, 4)), ("i", (6,))),
    "GatherV2 columns": _case(lambda a, i: tf.gather(a, i, axis=1), F, ("i", (2,)), partial=True),
    "GatherV2 batch": _case(lambda a, i: tf.gather(a, i, batch_dims=1), F, ("i", (6, 2))),
    "GatherNd": _case(tf.gather_nd, ("f", (3, 3)), ("i", (6, 2))),
    "UnsortedSegmentSum": _case(lambda a, i: tf.math.unsorted_segment_sum(a, i, 3), F, ("i", (6,))),
    "ScatterNd": _case(lambda i, a: tf.scatter_nd(i, a, (3, 4)), ("i", (6, 1)), F),
    "MatrixSetDiagV3": _case(tf.linalg.set_diag, SQUARES, ("f", (6, 3))),
    "MatrixSetDiagV3 band": _case(lambda a, d: tf.linalg.set_diag(a, d, k=(-1, 0)), SQUARES, ("f", (6, 2, 3))),
    "MatrixDiagPartV3": _case(tf.linalg.diag_part, SQUARES),
    "MatrixDiagPartV3 band": _case(lambda a: tf.linalg.diag_part(a, k=(-1, 1)), SQUARES),
    "MatrixDiagV3": _case(tf.linalg.diag, ("f", (6, 3))),
    "MatrixDiagV3 band": _case(lambda a: tf.linalg.diag(a, k=(-1, 0)), ("f", (6, 2, 3))),
    "MatrixInverse": _case(lambda a: tf.linalg.inv(a @ tf.transpose(a, (0, 2, 1)) + 4 * tf.eye(3)), SQUARES),
    "NthElement": _case(lambda a: raw.NthElement(input=a, n=1), SQUARES),
    "ArgMin": _case(lambda a: tf.argmin(a, 1), F),
    "ImageProjectiveTransformV3": _case(lambda a, t: _turned(a, t), IMAGE, ("f", (6, 2))),
    "ImageProjectiveTransformV3 by one": _case(lambda a, t: _turned(a, t), IMAGE, ("f", (1, 2))),
    "ExtractImagePatches": _case(lambda a: tf.image.extract_patches(a, [1, 2, 2, 1], [1] * 4, [1] * 4, "VALID"), IMAGE),
    "Dilation2D": _case(
        lambda a, f: tf.nn.dilation2d(a, f, (1, 1, 1, 1), "SAME", "NHWC", (1, 1, 1, 1)), IMAGE, ("f", (2, 2, 2))
    ),
    "AdjustContrastv2": _case(lambda a: tf.image.adjust_contrast(a, 2.0), ("f", (6, 4, 4, 3))),
    "AdjustHue": _case(lambda a: tf.image.adjust_hue(tf.sigmoid(a), 0.1), ("f", (6, 4, 4, 3))),
    "Betainc": _case(lambda a, b, x: tf.math.betainc(a, b, tf.sigmoid(x)), ("p", (6, 4)), ("p", (6, 4)), F),
    "Bucketize": _case(lambda a: raw.Bucketize(input=a, boundaries=[-1.0, 0.0, 1.0]), F),
    "Bitcast": _case(lambda a: tf.bitcast(tf.bitcast(a, tf.uint8), tf.float32), F),
    "Complex": _case(lambda a, b: tf.abs(tf.complex(a, b)), F, F),
    "DepthToSpace": _case(lambda a: tf.nn.depth_to_space(a, 2), ("f", (6, 2, 2, 4))),
    "SpaceToDepth": _case(lambda a: tf.nn.space_to_depth(a, 2), ("f", (6, 4, 4, 2))),
    "EuclideanNorm": _case(lambda a: tf.math.reduce_euclidean_norm(a, 0), F),
    "MirrorPadGrad": _case(lambda a: tf.gradients(tf.pad(a, [[0, 0], [1, 2]], "REFLECT") ** 2, a), F),
    "ResizeBicubicGrad": _case(lambda a: tf.gradients(tf.image.resize(a, (3, 4), "bicubic") ** 2, a), IMAGE),
    "LRN": _case(lambda a: tf.gradients(tf.nn.local_response_normalization(a) ** 2, a), IMAGE),
    "Cumprod": _case(lambda a: tf.gradients(tf.math.cumprod(a, 1), a), F),
    "InTopK": _case(lambda a, i: raw.InTopK(predictions=a, targets=i, k=2), F, ("i", (6,))),
    "Unique": _case(lambda i: tf.unique(i), ("i", (6,))),
    "SegmentMean": _case(lambda a, i: tf.math.segment_mean(a, tf.sort(i)), F, ("i", (6,))),
    "Where": _case(tf.boolean_mask, F, ("b", (6,))),
    "If": _case(
        lambda a, b: tf.cond(tf.reduce_mean(b) > 0.0, lambda: (a * 2, tf.reduce_sum(a)), lambda: (a, b[0, 0])), F, F
    ),
    "If that hands on": _case(lambda a, b: _one_or_the_other(a, b), F, F),
    "While": _case(
        lambda a: tf.while_loop(lambda i, *_: i < 3, lambda i, s, t: (i + 1, s + a, t + tf.reduce_sum(s)), (0, a, 0.0))[
            1:
        ],
        F,
    ),
    "TensorList": _case(lambda a: tf.map_fn(lambda step: step @ tf.transpose(step), a), ("f", (3, 6, 4))),
}


def _one_or_the_other(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Branches that hand on what was computed before."""
    first, second = tf.reduce_mean(a, 0), tf.reduce_mean(b, 0)
    return tf.cond(first[0] > second[0], lambda: first, lambda: second)


def values(kind: str, shape: Sequence[int], seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    if kind == "i":
        return random.integers(0, 3, shape).astype("int32")
    if kind == "b":
        return random.random(shape) > 0.5
    values = random.normal(size=shape).astype("float32")
    return np.abs(values) + 0.5 if kind == "p" else values


@st.composite
def layouts(draw: Any, case: Case, workers: int) -> list[Layout]:
    """Layouts of the inputs; inputs of one size along the divided dimension may be divided alike, or otherwise."""
    found: list[Layout] = []
    for kind, shape in case.inputs:
        choices = ["whole", *(["partial"] if case.partial and kind == "f" else []), *range(len(shape))]
        choice = draw(st.sampled_from(choices))
        if choice == "whole" or (isinstance(choice, int) and shape[choice] == 1):
            found.append(WHOLE)
        elif choice == "partial":
            found.append(PARTIAL)
        else:
            cuts = sorted(draw(st.lists(st.integers(0, shape[choice]), min_size=workers - 1, max_size=workers - 1)))
            sizes = tuple(b - a for a, b in zip([0, *cuts], [*cuts, shape[choice]], strict=True))
            same = [s for s in found if isinstance(s, Divided) and s.size == shape[choice]]
            # Alike most of the time: that is what rules are for.
            found.append(same[0].at(choice) if same and draw(st.integers(0, 3)) else Divided(choice, sizes))
    return found


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=_EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_rule_gives_what_the_operation_gives(name: str, data: st.DataObject) -> None:
    case = CASES[name]
    workers = data.draw(st.integers(1, 5))
    chosen = data.draw(layouts(case, workers))
    arrays = [tf.constant(values(kind, shape, seed)) for seed, (kind, shape) in enumerate(case.inputs)]
    whole = tf.function(lambda *inputs: tf.nest.flatten(case.apply(*inputs)), autograph=False).get_concrete_function(
        *(tf.TensorSpec(a.shape, a.dtype) for a in arrays)
    )
    divided = DividedStep(whole, dict(enumerate(chosen)), workers)
    expected = [t.numpy() for t in whole(*arrays)]
    assert largest_difference(expected, [t.numpy() for t in divided.function(*arrays)]) <= 2e-5


def test_every_rule_is_of_an_operation_that_there_is() -> None:
    from tensorflow.python.framework import op_def_registry

    # Registers our own operations.
    library("fdt.program.update")
    assert [name for name in RULES if op_def_registry.get(name) is None] == []


@pytest.mark.parametrize(("rows", "on_cpu", "turned"), [(8, True, True), (24, True, False), (8, False, False)])
def test_a_product_of_few_rows_by_many_is_turned_on_a_cpu(rows: int, on_cpu: bool, turned: bool) -> None:
    """Half of the rows are a worker's: up to a quarter of the others."""
    specs = [tf.TensorSpec([rows, 256]), tf.TensorSpec([24, 256])]
    concrete = tf.function(lambda a, b: tf.matmul(a, b, transpose_b=True)).get_concrete_function(*specs)
    exchange = Alone(2)
    exchange.on_cpu = on_cpu
    inputs = [Input(Divided(0, (rows // 2, rows // 2)), (rows, 256)), Input(WHOLE, (24, 256))]
    divided = divide.divide(described(concrete.graph), exchange, inputs)
    assert ("Transpose" in [node.op for node in divided.walk.body._nodes]) == turned
    assert divided.part_divided == 1
