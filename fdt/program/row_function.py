"""The function of one row of a data set, as it travels: from a row of the script's arrays, and the content of its files.

It names no file. Who runs it opens the files and hands their content in, so a pool admits no operation that opens one.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.errors import ProtocolError
from fdt.program.graphs import functions_of
from fdt.program.lookup_tables import Table
from fdt.program.record_index import Records
from fdt.program.step_program import import_function, shape_of
from fdt.v1 import program_pb2

# Texts begin behind their places, int64 [length + 1].
_PLACE_BYTES = 8


@dataclasses.dataclass(frozen=True)
class RowFiles:
    """What rows are made of.

    Attributes:
        function: The function of a row; see the module.
        given: Arrays [num_rows, ...] of its inputs; or lists of texts.
        files: For each file of a row the absolute paths, one for each row; of records the paths of their files.
        records: The rows' records; None if rows are whole files.
        to_the_bit: Whether the function computes rows as the script's data set does. A function that is called by others is
            rounded otherwise where it is a part of them: TensorFlow then multiplies by the inverse of a constant.
    """

    function: program_pb2.StepProgram
    given: Sequence[np.ndarray | list[bytes]]
    files: Sequence[list[bytes]]
    records: Records | None = None
    to_the_bit: bool = True

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
        return len(self.files[0]) if self.records is None else len(self.records.offset)


def packed_texts(texts: Sequence[bytes]) -> np.ndarray:
    """Returns texts as they travel: uint8, where each begins and the last one ends, then the texts."""
    places = np.zeros(len(texts) + 1, "<i8")
    np.cumsum([len(text) for text in texts], out=places[1:])
    return np.frombuffer(places.tobytes() + b"".join(texts), np.uint8)


def unpacked_texts(content: np.ndarray, length: int) -> tuple[np.ndarray, bytes]:
    """Returns where each text begins and the last one ends, and all texts behind each other.

    Args:
        content: uint8, as `packed_texts` returns it.
        length: How many texts there are.

    Raises:
        ProtocolError: The places are not those of texts.
    """
    begin = _PLACE_BYTES * (length + 1)
    places = content[:begin].view("<i8") if content.size >= begin else np.zeros(0, "<i8")
    size = content.size - begin
    if len(places) != length + 1 or places[0] != 0 or places[-1] != size or (np.diff(places) < 0).any():
        raise ProtocolError(f"Texts do not lie in their blob. Received: length={length}, size_bytes={content.size}")
    return places, content[begin:].tobytes()


def described(
    graph: Any,
    inputs: Sequence[tf.Tensor],
    outputs: Sequence[tf.Tensor],
    specs: Sequence[tf.TensorSpec],
    tables: Mapping[str, program_pb2.Table],
) -> program_pb2.StepProgram:
    """Returns the function as it travels.

    Args:
        graph: GraphDef of the function.
        inputs: Placeholders of it.
        outputs: Tensors of it.
        specs: What is known of the outputs.
        tables: The lookup tables, by their placeholders in the graph.
    """
    effects = [node.name for node in graph.node if node.op == "Assert"]
    meta_graph = tf.compat.v1.MetaGraphDef(graph_def=graph)
    meta_graph.meta_info_def.tensorflow_version = tf.__version__
    return program_pb2.StepProgram(
        step=program_pb2.Function(
            meta_graph=meta_graph.SerializeToString(deterministic=True),
            inputs=[tensor.op.name for tensor in inputs],
            outputs=[tensor.name for tensor in outputs],
            control_outputs=effects,
            tables=list(tables),
        ),
        tables=tables.values(),
        batch=[_described(tensor.shape, tensor.dtype) for tensor in inputs],
        outputs=[program_pb2.Output(tensor=_described(spec.shape, spec.dtype)) for spec in specs],
    )


def _described(shape: tf.TensorShape, dtype: tf.DType) -> program_pb2.Tensor:
    return program_pb2.Tensor(dtype=dtype.name, shape=[-1 if size is None else size for size in shape.as_list()])


class RowFunction:
    """A function of a row that is ready to be called, from a row's inputs to its outputs."""

    def __init__(self, program: program_pb2.StepProgram) -> None:
        """
        Args:
            program: What `described` returns.

        Raises:
            ProtocolError: The function contradicts itself.
        """
        step = program.step
        if len(step.inputs) != len(program.batch) or len(step.outputs) != len(program.outputs):
            raise ProtocolError("A function of rows has as many inputs and outputs as it says.")
        if len(step.tables) != len(program.tables):
            raise ProtocolError("A function of rows has as many lookup tables as it says.")
        # Kept: a table ends with its object.
        with tf.device("/cpu:0"):
            self._tables = list(map(Table, program.tables))
        specs = [tf.TensorSpec(shape_of(tensor), tensor.dtype) for tensor in program.batch]
        meta_graph = tf.compat.v1.MetaGraphDef.FromString(step.meta_graph)
        inputs, tables = dict(zip(step.inputs, specs, strict=True)), dict(zip(step.tables, self._tables, strict=True))
        self._called = import_function(meta_graph, inputs, tables, step.outputs, step.control_outputs)

    def __call__(self, *values: tf.Tensor) -> list[tf.Tensor]:
        """Returns a row's outputs."""
        made: list[tf.Tensor] = self._called(*values)
        return made


def needed(graph: Any, tensors: Collection[tf.Tensor], effects: Collection[str] = ()) -> Any:
    """Returns the part of a GraphDef that computes tensors, with the functions that it calls.

    Args:
        graph: The GraphDef.
        tensors: Tensors of it.
        effects: Names of operations that are kept besides.
    """
    kept = _before(graph, {tensor.op.name for tensor in tensors} | set(effects))
    part = tf.compat.v1.GraphDef(versions=graph.versions, node=[node for node in graph.node if node.name in kept])
    definitions = {function.signature.name: function for function in graph.library.function}
    waiting, used = [part.node], dict[str, Any]()
    while waiting:
        for node in waiting.pop():
            for name in functions_of(node.attr):
                if name not in used:
                    used[name] = definitions[name]
                    waiting.append(definitions[name].node_def)
    part.library.function.extend(used[name] for name in sorted(used))
    return part


def _before(graph: Any, names: Collection[str]) -> set[str]:
    """Returns the names of nodes, and of all that they wait for."""
    nodes = {node.name: node for node in graph.node}
    waiting, found = list(names), set[str]()
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += [given.lstrip("^").partition(":")[0] for given in nodes[name].input]
    return found
