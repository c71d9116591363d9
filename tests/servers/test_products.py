"""Products of matrices in another order: the same values for any number of rows, and only where the order is faster."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from fdt.program.step_program import import_function
from nfdt.products import reorder
from nfdt.rules import make_rule
from tests.helpers.programs import servers, traced

# Of B; products by it are exchanged for up to 64 rows of A.
LENGTH, DEPTH, MOST_ROWS = 256, 256, 64


def described(length: int | None = LENGTH, depth: int = DEPTH, dtype: str = "float32", **order: bool) -> tf.Graph:
    """Returns a graph of one product, of A with any number of rows and B of a known shape."""
    with tf.Graph().as_default() as graph:
        shapes = ([depth, None] if order.get("transpose_a") else [None, depth]), [length, depth]
        a, b = (tf.compat.v1.placeholder(dtype, s, n) for s, n in zip(shapes, "ab", strict=True))
        before = tf.compat.v1.placeholder("float32", [], "before")
        # What it waits for, it still waits for.
        with tf.control_dependencies([tf.debugging.assert_positive(before, name="positive")]):
            tf.matmul(a, b, **({"transpose_b": True} | order), name="product")
    return graph


def reordered(graph: tf.Graph) -> tf.compat.v1.GraphDef:
    whole = graph.as_graph_def(add_shapes=True)
    changed = graph.as_graph_def()
    reorder(changed, whole)
    return changed


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float64", 1e-13)])
@pytest.mark.parametrize("rows", [0, 1, MOST_ROWS, MOST_ROWS + 1, 500])
def test_a_product_is_the_same_for_any_number_of_rows(rows: int, dtype: str, tolerance: float) -> None:
    meta_graph = tf.compat.v1.MetaGraphDef(graph_def=reordered(described(dtype=dtype)))
    # Both orders are there, and one is computed.
    orders = {"product": "product:0", "few": "product/few:0"}
    specs = {
        "a": tf.TensorSpec([None, DEPTH], dtype),
        "b": tf.TensorSpec([LENGTH, DEPTH], dtype),
        "before": tf.TensorSpec([]),
    }
    function = import_function(meta_graph, specs, {}, list(orders.values()), [])
    random = np.random.default_rng(0)
    a, b = (tf.constant(random.standard_normal(shape), dtype) for shape in ([rows, DEPTH], [LENGTH, DEPTH]))
    product, few = function(a, b, tf.constant(1.0))
    assert bool(few) == (rows <= MOST_ROWS)
    np.testing.assert_allclose(product, a.numpy() @ b.numpy().T, rtol=tolerance, atol=tolerance * DEPTH)
    with pytest.raises(tf.errors.InvalidArgumentError, match="assertion failed"):
        function(a, b, tf.constant(-1.0))


@pytest.mark.parametrize(
    "graph",
    [
        described(length=None),
        described(length=3),
        described(depth=255),
        described(dtype="int32"),
        described(transpose_a=True),
        described(length=DEPTH, transpose_b=False),
    ],
    ids=["unknown", "short", "shallow", "integers", "both", "forward"],
)
def test_other_products_are_left_as_they_are(graph: tf.Graph) -> None:
    assert reordered(graph) == graph.as_graph_def()


@pytest.mark.parametrize(("num_workers", "exchanged"), [(1, False), (2, True)])
def test_several_workers_compute_so_and_one_alone_computes_what_the_script_does(
    num_workers: int, exchanged: bool
) -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(LENGTH), keras.layers.Dense(DEPTH)])
    model.compile("sgd", "mse")
    rows = np.zeros((8, 4), np.float32), np.zeros((8, DEPTH), np.float32)
    kept = servers(traced(model, rows), make_rule("asgd"), num_workers=num_workers)
    graph = kept._computation._step.graph.as_graph_def()
    assert any(node.op == "Merge" for node in graph.node) == exchanged
