"""Tables are read with the types that they have: TensorFlow ends a process that asks for others."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

from fdt.program.lookup_tables import describe, is_fixed
from fdt.program.step_program import export
from fdt.v1 import program_pb2

_CONTENT = {
    "words to numbers": (["a", "b"], [1, 2], tf.string, tf.int64),
    "numbers to numbers": ([10, 20], [1, 2], tf.int64, tf.int64),
    "numbers to words": ([10, 20], ["a", "b"], tf.int64, tf.string),
    "small numbers to floats": ([10, 20], [0.5, 1.5], tf.int32, tf.float32),
}


def _directly(table: Any, keys: tf.Tensor) -> tf.Tensor:
    return table.lookup(keys)


def _in_a_call(table: Any, keys: tf.Tensor) -> tf.Tensor:
    return tf.function(table.lookup)(keys)


def _in_a_branch(table: Any, keys: tf.Tensor) -> tf.Tensor:
    return tf.cond(tf.size(keys) > 1, lambda: table.lookup(keys), lambda: table.lookup(keys[:1]))


@pytest.mark.parametrize("looked_up", [_directly, _in_a_call, _in_a_branch])
@pytest.mark.parametrize("name", _CONTENT)
def test_a_table_is_read_as_it_is(name: str, looked_up: Callable[[Any, tf.Tensor], tf.Tensor]) -> None:
    keys, values, key_type, value_type = _CONTENT[name]
    initializer = tf.lookup.KeyValueTensorInitializer(tf.constant(keys, key_type), tf.constant(values, value_type))
    table = tf.lookup.StaticHashTable(initializer, tf.zeros([], value_type) if value_type != tf.string else "")
    step = tf.function(lambda x: looked_up(table, x)).get_concrete_function(tf.TensorSpec([None], key_type))
    ((handle, inside),) = [pair for pair in step.graph.captures if pair[0] is table.resource_handle]
    described = describe(handle, inside)
    assert described is not None
    found = [tf.make_ndarray(tensor_pb2.TensorProto.FromString(c)) for c in (described.keys, described.values)]
    expected = [tf.constant(keys, key_type).numpy(), tf.constant(values, value_type).numpy()]
    order = np.argsort(found[0])
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert one[order].tolist() == other.tolist()


def test_what_is_no_table_is_none() -> None:
    iterator = iter(tf.data.Dataset.range(3))
    step = tf.function(lambda: next(iterator)).get_concrete_function()
    for handle, inside in step.graph.captures:
        assert describe(handle, inside) is None


def _static() -> Any:
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a"], tf.constant([1], tf.int64)), -1)


def _changing() -> Any:
    return tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)


@pytest.mark.parametrize(("make", "expected"), [(_static, True), (_changing, False)])
@pytest.mark.parametrize("looked_up", [_directly, _in_a_call])
def test_a_table_that_can_be_filled_further_is_not_fixed(
    make: Callable[[], Any], expected: bool, looked_up: Callable[[Any, tf.Tensor], tf.Tensor]
) -> None:
    table = make()
    size = int(table.size())
    step = tf.function(lambda x: looked_up(table, x)).get_concrete_function(tf.TensorSpec([None], tf.string))
    ((handle, inside),) = [pair for pair in step.graph.captures if pair[0] is table.resource_handle]
    # While the script traces a function, too.
    found = tf.function(lambda: tf.constant(is_fixed(handle, inside)))()
    assert is_fixed(handle, inside) == bool(found) == expected
    assert int(table.size()) == size


def test_a_step_with_a_table_is_exported_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    table = _static()
    step = tf.function(lambda share, words: [table.lookup(words)])
    concrete = step.get_concrete_function(tf.TensorSpec([], tf.float32), tf.TensorSpec([None], tf.string))
    logger = tf.get_logger()
    logger.addHandler(caplog.handler)
    try:
        program, _ = export(concrete, [], lambda variable: program_pb2.Variable())
    finally:
        logger.removeHandler(caplog.handler)
    assert caplog.records == []
    assert len(program.tables) == 1
