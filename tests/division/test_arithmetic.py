"""What is counted of a step's arithmetic, and which part of it is divided."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fdt.division.arithmetic import flops

_DEPTHWISE = tf.nn.depthwise_conv2d
CASES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]], int]] = {
    "matrices": (tf.matmul, [(3, 4), (4, 5)], 2 * 3 * 4 * 5),
    "stacks of matrices": (tf.matmul, [(2, 3, 4), (2, 4, 5)], 2 * 2 * 3 * 4 * 5),
    "einsum": (lambda a, b: tf.einsum("bij,jk->bik", a, b), [(2, 3, 4), (4, 5)], 2 * 2 * 3 * 4 * 5),
    "convolution": (lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"), [(2, 6, 6, 3), (3, 3, 3, 8)], 2 * 2 * 36 * 27 * 8),
    "depthwise": (lambda x, w: _DEPTHWISE(x, w, [1] * 4, "SAME"), [(2, 6, 6, 3), (3, 3, 3, 2)], 2 * 2 * 36 * 9 * 6),
    "addition": (tf.add, [(3, 4), (3, 4)], 0),
}


@pytest.mark.parametrize("name", CASES)
def test_products_and_convolutions_are_counted(name: str) -> None:
    make, shapes, expected = CASES[name]
    concrete = tf.function(make).get_concrete_function(*(tf.TensorSpec(shape, tf.float32) for shape in shapes))
    assert sum(flops(op) for op in concrete.graph.get_operations()) == expected


@pytest.mark.parametrize("name", ["convolution", "depthwise", "volumes"])
def test_gradients_of_a_convolution_cost_as_much_as_it_does(name: str) -> None:
    given: dict[str, Any] = {
        **CASES,
        "volumes": (lambda x, w: tf.nn.conv3d(x, w, [1] * 5, "SAME"), [(2, 4, 4, 4, 3), (3, 3, 3, 3, 5)], 0),
    }
    make, shapes, _ = given[name]

    def step(x: tf.Tensor, w: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            total = tf.reduce_sum(make(x, w) ** 2)
        return tape.gradient(total, [x, w])

    graph = tf.function(step).get_concrete_function(*(tf.TensorSpec(shape, tf.float32) for shape in shapes)).graph
    counted = [count for count in map(flops, graph.get_operations()) if count]
    assert len(counted) == 3 and np.ptp(counted) == 0
