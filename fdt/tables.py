"""Lookup tables that a step looks things up in: their content on the way, and tables made of it again."""

import itertools
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

from fdt.messages import program_pb2

_KEYS = (tf.string, tf.int64, tf.int32)
_VALUES = (tf.int64, tf.string, tf.float32, tf.int32, tf.float64, tf.bool)


class Table:
    """A table that no step changes."""

    def __init__(self, description: program_pb2.Table):
        """Makes it on the current device, which must be a CPU."""
        keys, values = (
            tf.constant(tf.make_ndarray(tensor_pb2.TensorProto.FromString(content)))
            for content in (description.keys, description.values)
        )
        # The default is an input of each look-up; this one is never used.
        unused = tf.zeros([], values.dtype) if values.dtype != tf.string else tf.constant("")
        self._table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), unused)

    @property
    def handle(self) -> tf.Tensor:
        """The resource."""
        return self._table.resource_handle


def describe(handle: tf.Tensor) -> program_pb2.Table | None:
    """Returns the content of a table; None if the resource is none."""
    for keys, values in itertools.product(_KEYS, _VALUES):
        content = _export(handle, keys, values)
        if content is not None:
            serialised = [tf.make_tensor_proto(t).SerializeToString() for t in content]
            return program_pb2.Table(keys=serialised[0], values=serialised[1])
    return None


def _export(handle: tf.Tensor, keys: tf.DType, values: tf.DType) -> Any | None:
    try:
        return tf.raw_ops.LookupTableExportV2(table_handle=handle, Tkeys=keys, Tvalues=values)
    except (tf.errors.InvalidArgumentError, tf.errors.NotFoundError):
        return None
