"""Serialises the lookup tables of a step, and makes tables of their contents."""

import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

from fdt.program.graphs import called
from fdt.v1 import program_pb2

# Operations that read a table, and their attributes for the types of its keys and values.
_READERS = {"LookupTableFindV2": ("Tin", "Tout"), "LookupTableExportV2": ("Tkeys", "Tvalues")}


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


def describe(handle: tf.Tensor, inside: tf.Tensor) -> program_pb2.Table | None:
    """Returns the content of a table; None if the resource is no table that the step reads.

    Args:
        handle: The resource.
        inside: Its placeholder in the step's graph, whose readers have the types. TensorFlow ends the process if it is asked
            for types other than the table's.
    """
    types = _types(inside)
    if types is None:
        return None
    content = tf.raw_ops.LookupTableExportV2(table_handle=handle, Tkeys=types[0], Tvalues=types[1])
    keys, values = (tf.make_tensor_proto(tensor).SerializeToString() for tensor in content)
    return program_pb2.Table(keys=keys, values=values)


def is_fixed(handle: tf.Tensor, inside: tf.Tensor) -> bool:
    """Returns whether a resource is a table that nobody can change any more; see `describe`."""
    types = _types(inside)
    if types is None:
        return False
    with tf.init_scope():
        keys, values = (tf.zeros([0], dtype) for dtype in types)
        try:
            # Nothing is inserted. A table that is made of its initial content alone refuses even that.
            tf.raw_ops.LookupTableInsertV2(table_handle=handle, keys=keys, values=values)
        except tf.errors.UnimplementedError:
            return True
    return False


def _types(inside: tf.Tensor) -> tuple[tf.DType, tf.DType] | None:
    """Returns the types of a table's keys and values, from an operation that reads it."""
    for op in inside.consumers():
        if op.type in _READERS:
            keys, values = _READERS[op.type]
            return op.get_attr(keys), op.get_attr(values)
        places = [place for place, tensor in enumerate(op.inputs) if tensor is inside]
        further = [op.outputs[0]] if op.type == "Identity" else []
        for function in called(op):
            # A predicate comes before what branches are given.
            before = len(op.inputs) - len(function.inputs)
            further += [function.inputs[place - before] for place in places]
        found = next(filter(None, map(_types, further)), None)
        if found is not None:
            return found
    return None
