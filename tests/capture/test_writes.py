"""What a step writes, and whether it computes a gradient at a place to which it has moved a variable by another one."""

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from fdt.capture.step.writes import changed, written_before


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
    assert written_before(graph, holes) is (a.handle if is_found else None)


def _by_assign(a: tf.Variable) -> tf.Tensor:
    a.assign(a * 2.0)
    return a**2


def _by_row(a: tf.Variable) -> tf.Tensor:
    a.scatter_update(tf.IndexedSlices(tf.constant([3.0]), tf.constant([0])))
    return a**2


def _by_operation(a: tf.Variable) -> tf.Tensor:
    tf.raw_ops.AssignSubVariableOp(resource=a.handle, value=tf.ones(2))
    return a**2


def _in_a_branch(a: tf.Variable) -> tf.Tensor:
    tf.cond(tf.reduce_sum(a) > 0, lambda: a.assign(a * 2.0).read_value(), lambda: a.read_value())
    return a**2


def _in_a_function(a: tf.Variable) -> tf.Tensor:
    tf.function(lambda: a.assign(a * 2.0))()
    return tf.function(lambda: a**2)()


def _afterwards(a: tf.Variable) -> tf.Tensor:
    square = a**2
    a.assign(a * 2.0)
    return square


def _elsewhere(a: tf.Variable) -> tf.Tensor:
    tf.function(lambda: a**3)()
    _OTHER.assign(a * 2.0)
    return a**2 * _OTHER


_OTHER = tf.Variable([1.0, 1.0])
_WAYS = {_by_assign: True, _by_row: True, _by_operation: True, _in_a_branch: True, _in_a_function: True} | {
    _afterwards: False,
    _elsewhere: False,
}


@pytest.mark.parametrize(("way", "is_found"), _WAYS.items(), ids=lambda each: getattr(each, "__name__", ""))
@pytest.mark.parametrize("is_made_inside", [False, True], ids=["", "made in a function"])
def test_what_is_written_before_a_gradient_is_found(
    way: Callable[[tf.Variable], tf.Tensor], is_found: bool, is_made_inside: bool
) -> None:
    a, hole = _variable(is_made_inside), _hole("hand_over")

    @tf.function
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            value = way(a)
        return hole(tape.gradient(value, a))

    graph = step.get_concrete_function().graph
    (call,) = [o for o in graph.get_operations() if "Call" in o.type and "hand_over" in o.get_attr("f").name]
    found = written_before(graph, {call.get_attr("f").name: {id(a.handle)}})
    assert found is (a.handle if is_found else None)


def _variable(is_made_inside: bool) -> tf.Variable:
    made: list[tf.Variable] = []

    @tf.function
    def make() -> None:
        if not made:
            made.append(tf.Variable([1.0, 2.0]))

    if not is_made_inside:
        return tf.Variable([1.0, 2.0])
    make()
    return made[0]


def _reads(a: tf.Variable, b: tf.Variable) -> tf.Tensor:
    return tf.reduce_sum(a + b)


def _reads_in_a_loop(a: tf.Variable, b: tf.Variable) -> tf.Tensor:
    def body(i: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return i + 1, total + tf.cond(i > 1, lambda: tf.reduce_sum(a), lambda: tf.reduce_sum(b))

    return tf.while_loop(lambda i, _: i < 3, body, (tf.constant(0), tf.constant(0.0)))[1]


def _reads_in_a_function(a: tf.Variable, b: tf.Variable) -> tf.Tensor:
    return tf.function(lambda: tf.reduce_sum(a * b))()


def _writes(a: tf.Variable, b: tf.Variable) -> tf.Tensor:
    a.assign_add(b)
    return tf.reduce_sum(a)


def _writes_in_a_branch_of_a_loop(a: tf.Variable, b: tf.Variable) -> tf.Tensor:
    def body(i: tf.Tensor) -> tf.Tensor:
        tf.cond(i > 1, lambda: tf.identity(a.assign(b)), lambda: tf.identity(b))
        return i + 1

    return tf.while_loop(lambda i: i < 3, body, [tf.constant(0)])[0]


def _writes_in_a_function(a: tf.Variable, b: tf.Variable) -> tf.Tensor:
    return tf.function(lambda: a.scatter_add(tf.IndexedSlices([1.0], [0])) + tf.reduce_sum(b))()


def _scattered(a: tf.Variable, b: tf.Variable) -> tf.Tensor:
    a.scatter_add(tf.IndexedSlices([1.0], [0]))
    return tf.reduce_sum(b)


@pytest.mark.parametrize(
    ("step", "writes"),
    [
        *((step, False) for step in (_reads, _reads_in_a_loop, _reads_in_a_function)),
        *((step, True) for step in (_writes, _writes_in_a_branch_of_a_loop, _writes_in_a_function, _scattered)),
    ],
)
def test_a_variable_that_is_written_is_told_from_one_that_is_read(step: Callable[..., Any], writes: bool) -> None:
    a, b = tf.Variable([1.0, 2.0]), tf.Variable([3.0, 4.0])
    graph = tf.function(lambda: step(a, b)).get_concrete_function().graph
    assert [id(variable) for variable in changed(graph, [a, b])] == ([id(a)] if writes else [])
