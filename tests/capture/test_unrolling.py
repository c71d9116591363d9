"""A loop over data in a tf.function, driven from outside: the same values, and its body traced once."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fdt.base.patch import Patches
from fdt.capture.loop.unrolling import Unrolling

DATA = tf.data.Dataset.range(10).batch(3, drop_remainder=True)


@pytest.fixture
def unrolling() -> Iterator[Unrolling]:
    patches, found = Patches(), Unrolling()
    found.install(patches)
    yield found
    patches.undo()


def until(data: Any, limit: Any) -> Any:
    total = tf.constant(0, tf.int64)
    for batch in data:
        total += tf.reduce_sum(batch)
        if total > limit:
            break
    return total


def nested(data: Any, times: Any) -> Any:
    total = tf.constant(0, tf.int64)
    for i in tf.range(times):
        for batch in data:
            total += tf.reduce_max(batch) * tf.cast(i, tf.int64)
    return total


def taking(iterator: Any, times: Any) -> Any:
    total = tf.constant(0, tf.int64)
    for _ in tf.range(times):
        total += tf.reduce_sum(next(iterator))
    return total


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (until, (DATA, tf.constant(5, tf.int64))),
        (until, (iter(DATA.repeat()), tf.constant(90, tf.int64))),
        (nested, (DATA, tf.constant(3))),
        (taking, (iter(DATA.repeat()), tf.constant(4))),
    ],
    ids=["break", "iterator", "nested", "range"],
)
def test_values_are_those_of_the_graph(unrolling: Unrolling, function: Any, args: tuple[Any, ...]) -> None:
    traced = tf.function(function)
    iterators = [isinstance(arg, tf.data.Iterator) for arg in args]
    fresh = [iter(DATA.repeat()) if is_iterator else arg for is_iterator, arg in zip(iterators, args, strict=True)]
    assert unrolling.loops(traced.get_concrete_function(*args), traced)
    expected = traced(*fresh)
    again = [iter(DATA.repeat()) if is_iterator else arg for is_iterator, arg in zip(iterators, args, strict=True)]
    np.testing.assert_array_equal(unrolling.run(traced, again, {}), expected)


def test_a_body_is_traced_once_unless_it_sees_something_else(unrolling: Unrolling) -> None:
    traces: list[None] = []
    weight = tf.Variable(1, dtype=tf.int64)

    @tf.function
    def epoch(data: Any, factor: Any) -> Any:
        total = tf.constant(0, tf.int64)
        count = 0
        for batch in data:
            traces.append(None)
            weight.assign_add(1)
            total += tf.reduce_sum(batch) * factor
            count += 1
        return total, count

    results = [unrolling.run(epoch, (DATA, 2), {}) for _ in range(3)]
    assert [(int(total), int(count)) for total, count in results] == [(72, 3)] * 3
    assert len(traces) == 1
    assert int(unrolling.run(epoch, (DATA, 3), {})[0]) == 108
    assert len(traces) == 2
    assert int(weight) == 13


def test_tensors_of_the_function_around_it_are_inputs(unrolling: Unrolling) -> None:
    traces: list[None] = []

    @tf.function
    def epoch(data: Any, number: Any) -> Any:
        total, scale = tf.constant(0, tf.int64), number * 2
        for batch in data:
            traces.append(None)
            total += tf.reduce_sum(batch) * scale
        return total

    assert [int(unrolling.run(epoch, (DATA, tf.constant(n, tf.int64)), {})) for n in (1, 2, 3)] == [72, 144, 216]
    assert len(traces) == 1


def test_what_the_body_defines_is_there_afterwards(unrolling: Unrolling) -> None:
    @tf.function
    def epoch(data: Any) -> Any:
        for batch in data:
            last = tf.reduce_max(batch)
        return last

    assert int(unrolling.run(epoch, (DATA,), {})) == 8


@pytest.mark.parametrize(
    "function",
    [
        tf.function(lambda x: tf.reduce_sum(x)),
        tf.function(lambda x: tf.while_loop(lambda n: n < 3, lambda n: n + 1, [x])),
    ],
)
def test_others_are_run_as_they_are(unrolling: Unrolling, function: Any) -> None:
    assert not unrolling.loops(function.get_concrete_function(tf.constant(1)), function)
