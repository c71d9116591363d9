"""Whether a step computes a gradient at a place to which it has moved a variable by another one."""

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from fdt.capture.step.writes import updated_between


def _hole(name: str) -> Callable[..., Any]:
    """Returns a function in the graph that hands gradients on, as that marks a hole."""

    def hand_on(gradient: tf.Tensor) -> tf.Tensor:
        return tf.identity(gradient)

    hand_on.__name__ = name
    return tf.function(hand_on)


def _update(hole: Callable[..., Any], of: tf.Variable, loss: Callable[[], tf.Tensor]) -> None:
    with tf.GradientTape() as tape:
        value = loss()
    of.assign_sub(0.1 * hole(tape.gradient(value, of)))


def _twice(a: tf.Variable, b: tf.Variable, one: Any, other: Any) -> None:
    _update(one, a, lambda: tf.reduce_sum(a**2))
    _update(other, a, lambda: tf.reduce_sum(a**2))


def _in_turn(a: tf.Variable, b: tf.Variable, one: Any, other: Any) -> None:
    _update(one, a, lambda: tf.reduce_sum(a**2))
    _update(other, b, lambda: tf.reduce_sum(a * b))


def _together(a: tf.Variable, b: tf.Variable, one: Any, other: Any) -> None:
    with tf.GradientTape(persistent=True) as tape:
        value = tf.reduce_sum(a**2 * b)
    first, second = tape.gradient(value, a), tape.gradient(value, b)
    a.assign_sub(0.1 * one(first))
    b.assign_sub(0.1 * other(second))


@pytest.mark.parametrize(("step", "is_found"), [(_twice, True), (_in_turn, False), (_together, False)])
def test_a_second_gradient_at_another_place_is_found(step: Callable[..., None], is_found: bool) -> None:
    a, b = tf.Variable([1.0, 2.0]), tf.Variable([3.0, 4.0])
    graph = tf.function(lambda: step(a, b, _hole("one"), _hole("other"))).get_concrete_function().graph
    calls = [o for o in graph.get_operations() if "Call" in o.type]
    of_each = [a, a] if step is _twice else [a, b]
    holes = {call.get_attr("f").name: {id(v.handle)} for call, v in zip(calls, of_each, strict=True)}
    assert updated_between(graph, holes) is (a.handle if is_found else None)
