"""What fills the hole of a learning rate: the rate, times how much the gradient at hand is believed."""

import itertools
from collections.abc import Collection, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import graph_pb2, types_pb2

from nfdt.graph import Graph, data_inputs, text_of

_numbers = itertools.count()
# Stands for the variable in a graph.
HANDLE = "fdt_reliability"


class Reliability:
    """One shard's reliability, a variable. An optimizer's calls for its rate multiply by it.

    It has a name because an optimizer may ask for its rate inside a branch (loss scaling, accumulation of gradients), in a
    function of its library, which can capture nothing.
    """

    dtype, shape = tf.float32, tf.TensorShape([])

    def __init__(self, device: str):
        """Reliability 1.

        Args:
            device: Where the shard is.
        """
        self._device, self._name = device, f"fdt_reliability_{next(_numbers)}"
        self.handle = self._handle()
        self.assign(tf.ones([]))

    def assign(self, reliability: tf.Tensor) -> Any:
        """Makes a float32 scalar the factor from now on; returns the operation, in a graph."""
        return tf.raw_ops.AssignVariableOp(resource=self.handle, value=reliability)

    def read_value(self) -> tf.Tensor:
        """Returns it, in a graph."""
        value = tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=tf.float32)
        value.set_shape([])
        return value

    def body(self, share: tf.Tensor, rate: tf.Tensor) -> Sequence[tf.Tensor]:
        """Fills a hole inside a library function: (share, rate) -> the rate that the optimizer is to use."""
        return [rate * tf.cast(tf.raw_ops.ReadVariableOp(resource=self._handle(), dtype=tf.float32), rate.dtype)]

    def _handle(self) -> tf.Tensor:
        with tf.device(self._device):
            return tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], shared_name=self._name, container="")


def multiply_rates(graph_def: Any, holes: Collection[str]) -> Any:
    """Puts a multiplication by the reliability in the place of each call of a rate's hole.

    A compiler takes a variable that comes in, but not one that is found by its name.

    Args:
        graph_def: Of an update.
        holes: Names of the holes' functions.

    Returns:
        A GraphDef in which the placeholder `HANDLE` stands for the variable.
    """
    graph = Graph(graph_def)
    calls = {n.name for n in graph_def.node if n.op == "PartitionedCall" and n.attr["f"].func.name in holes}
    result = graph_pb2.GraphDef()
    result.CopyFrom(graph_def)
    del result.node[:]
    if calls:
        _add(result, HANDLE, "Placeholder", [], dtype=types_pb2.DT_RESOURCE)
    for node in graph_def.node:
        if node.name not in calls:
            result.node.add().CopyFrom(node)
            continue
        rate = data_inputs(node)[1]
        number = graph.dtype((node.name, 0))
        _add(result, f"{node.name}/fdt_read", "ReadVariableOp", [HANDLE], dtype=types_pb2.DT_FLOAT)
        cast = {"SrcT": types_pb2.DT_FLOAT, "DstT": number}
        _add(result, f"{node.name}/fdt_cast", "Cast", [f"{node.name}/fdt_read"], **cast)
        # Under the name of the call, so that those who used it use this.
        _add(result, node.name, "Mul", [text_of(rate), f"{node.name}/fdt_cast"], T=number)
    return result


def _add(graph_def: Any, name: str, op: str, inputs: Sequence[str], **types: int) -> None:
    node = graph_def.node.add(name=name, op=op, input=inputs)
    for key, number in types.items():
        node.attr[key].type = number
