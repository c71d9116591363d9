"""Programs that try what no program may: each is a step that also does, or would do, something outside of its numbers.

`CORPUS` has the name of each and what builds it for a path, which those write to or read that touch files. Admission refuses
them all; `WRITERS` and `READERS` are those that did it for real on a worker that nothing else held back.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

from fdt.errors import FdtError, ProgramRefusedError, ProtocolError
from fdt.program.operations import REASONS
from fdt.transport.wire import varint
from fdt.v1 import program_pb2

GraphDef = tf.compat.v1.GraphDef
STRING, FLOAT, INT64 = tf.string.as_datatype_enum, tf.float32.as_datatype_enum, tf.int64.as_datatype_enum
RESOURCE, VARIANT = tf.resource.as_datatype_enum, tf.variant.as_datatype_enum

WRITTEN = "written by a program"


@dataclasses.dataclass(frozen=True)
class Hostile:
    """A program, and the error by which admission refuses it: its class, and words of its message."""

    name: str
    build: Callable[[str], program_pb2.StepProgram]
    error: type[FdtError]
    words: Sequence[str]


HOSTILE: list[Hostile] = []


@dataclasses.dataclass(frozen=True)
class Type:
    number: int


@dataclasses.dataclass(frozen=True)
class Left:
    """An attribute left open, to be filled in from one of the function's."""

    name: str


@dataclasses.dataclass(frozen=True)
class Call:
    """A function as an attribute's value, with attributes of its own."""

    name: str
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def fill(value: Any, content: Any) -> None:
    """Sets an AttrValue."""
    if isinstance(content, list):
        value.list.SetInParent()
        for each in content:
            if isinstance(each, Type):
                value.list.type.append(each.number)
            elif isinstance(each, Call):
                name_function(value.list.func.add(), each)
            elif isinstance(each, str | bytes):
                value.list.s.append(each.encode() if isinstance(each, str) else each)
            elif isinstance(each, int):
                value.list.i.append(each)
            else:
                value.list.shape.add().CopyFrom(each)
    elif isinstance(content, Type):
        value.type = content.number
    elif isinstance(content, Left):
        value.placeholder = content.name
    elif isinstance(content, Call):
        name_function(value.func, content)
    elif isinstance(content, bool):
        value.b = content
    elif isinstance(content, int):
        value.i = content
    elif isinstance(content, str | bytes):
        value.s = content.encode() if isinstance(content, str) else content
    elif isinstance(content, tf.compat.v1.TensorShape):
        value.shape.CopyFrom(content.as_proto())
    else:
        value.tensor.CopyFrom(content)


def name_function(target: Any, call: Call) -> None:
    target.name = call.name
    for name, content in call.attributes.items():
        fill(target.attr[name], content)


def node(nodes: Any, op: str, name: str, *inputs: str, **attributes: Any) -> Any:
    """Adds a node to a graph or function."""
    added = (nodes.node if isinstance(nodes, GraphDef) else nodes.node_def).add(name=name, op=op, input=inputs)
    for attribute, content in attributes.items():
        fill(added.attr[attribute], content)
    return added


def constant(nodes: Any, name: str, value: Any, dtype: tf.DType = tf.string) -> None:
    tensor = tf.make_tensor_proto(value, dtype)
    node(nodes, "Const", name, dtype=Type(dtype.as_datatype_enum), value=tensor)


def function(graph: Any, name: str, *inputs: str, **defaults: Any) -> Any:
    """Adds a function of strings that returns a number; its attributes are left to the caller, with these defaults or None."""
    added = graph.library.function.add()
    added.signature.name = name
    added.signature.is_stateful = True
    for each in inputs:
        added.signature.input_arg.add(name=each, type=STRING)
    added.signature.output_arg.add(name="done", type=FLOAT)
    for attribute, content in defaults.items():
        declared = added.signature.attr.add(name=attribute, type="func" if isinstance(content, Call) else "string")
        if content is not None:
            fill(declared.default_value, content)
    constant(added, "one", 1.0, tf.float32)
    added.ret["done"] = "one:output:0"
    return added


def effect(target: Any, op: str, *inputs: str, name: str = "effect", **attributes: Any) -> Any:
    """Adds a node to a function that runs whenever the function does."""
    added = node(target, op, name, *inputs, **attributes)
    target.control_ret[name] = name
    target.signature.control_output.append(name)
    return added


def call(nodes: Any, name: str, *inputs: str, op: str = "StatefulPartitionedCall", **attributes: Any) -> Any:
    return node(
        nodes, op, "call", *inputs,
        Tin=[Type(STRING)] * len(inputs), Tout=[Type(FLOAT)], f=Call(name, attributes),
    )  # fmt: skip


def step(graph: Any) -> None:
    """Adds what makes a graph a step: it returns the sum of its batch."""
    node(graph, "Placeholder", "share", dtype=Type(FLOAT), shape=tf.compat.v1.TensorShape([]))
    node(graph, "Placeholder", "x", dtype=Type(FLOAT), shape=tf.compat.v1.TensorShape([None]))
    constant(graph, "axes", [0], tf.int32)
    node(graph, "Sum", "y", "x", "axes", T=Type(FLOAT), Tidx=Type(tf.int32.as_datatype_enum), keep_dims=False)
    graph.versions.producer = tf.version.GRAPH_DEF_VERSION


def program(meta_graph: bytes, *effects: str) -> program_pb2.StepProgram:
    """Makes a step of a graph, which must run some operations besides."""
    function = program_pb2.Function(
        meta_graph=meta_graph, inputs=["share", "x"], outputs=["y:0"], control_outputs=effects
    )
    return program_pb2.StepProgram(
        step=function,
        batch=[program_pb2.Tensor(name="x", dtype="float32", shape=[-1])],
        outputs=[program_pb2.Output(tensor=program_pb2.Tensor(name="y", dtype="float32"))],
    )


def of_graph(graph: Any, *effects: str) -> program_pb2.StepProgram:
    return program(tf.compat.v1.MetaGraphDef(graph_def=graph).SerializeToString(), *effects)


def field(number: int, content: bytes) -> bytes:
    """Returns a field of a message as its bytes."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def hostile(*words: str, error: type[FdtError] = ProgramRefusedError) -> Callable[[Any], Any]:
    """Puts a program into the corpus; what it decorates fills the graph and returns the operations to run."""

    def add(build: Callable[[Any, str], Any]) -> Any:
        def built(path: str) -> program_pb2.StepProgram:
            graph = GraphDef()
            step(graph)
            made = build(graph, path)
            if isinstance(made, program_pb2.StepProgram):
                return made
            return of_graph(graph, *([made] if made else []))

        HOSTILE.append(Hostile(build.__name__, built, error, words))
        return build

    return add


# What is printed to a file.


@hostile("PrintV2", "output_stream", "file://")
def prints_to_a_file(graph: Any, path: str) -> str:
    constant(graph, "text", WRITTEN)
    node(graph, "PrintV2", "print", "text", output_stream=f"file://{path}")
    return "print"


@hostile("function 'inner'", "left open", "stream")
def prints_where_a_default_says(graph: Any, path: str) -> str:
    constant(graph, "text", WRITTEN)
    inner = function(graph, "inner", "text", stream=f"file://{path}")
    effect(inner, "PrintV2", "text", output_stream=Left("stream"))
    call(graph, "inner", "text")
    return "call"


@hostile("f.stream", "StatefulPartitionedCall", "file://")
def prints_where_a_call_says(graph: Any, path: str) -> str:
    constant(graph, "text", WRITTEN)
    inner = function(graph, "inner", "text", stream=None)
    effect(inner, "PrintV2", "text", output_stream=Left("stream"))
    call(graph, "inner", "text", stream=f"file://{path}")
    return "call"


@hostile("output_stream", "PrintV2", "function 'inner'", "left open")
def prints_where_nobody_says(graph: Any, path: str) -> str:
    constant(graph, "text", WRITTEN)
    effect(function(graph, "inner", "text"), "PrintV2", "text", output_stream=Left("stream"))
    call(graph, "inner", "text")
    return "call"


def through_levels(graph: Any, path: str, levels: int) -> str:
    constant(graph, "text", WRITTEN)
    inner = function(graph, "level_0", "text", stream=None)
    effect(inner, "PrintV2", "text", output_stream=Left("stream"))
    for level in range(1, levels):
        outer = function(graph, f"level_{level}", "text", stream=None)
        called = effect(
            outer, "StatefulPartitionedCall", "text",
            Tin=[Type(STRING)], Tout=[Type(FLOAT)], f=Call(f"level_{level - 1}", {"stream": Left("stream")}),
        )  # fmt: skip
        assert called.name == "effect"
    call(graph, f"level_{levels - 1}", "text", stream=f"file://{path}")
    return "call"


@hostile("f.stream", "StatefulPartitionedCall", "file://")
def prints_through_two_functions(graph: Any, path: str) -> str:
    return through_levels(graph, path, 2)


@hostile("f.stream", "StatefulPartitionedCall", "file://")
def prints_through_three_functions(graph: Any, path: str) -> str:
    return through_levels(graph, path, 3)


@hostile("'stream'", "operation 'inner'", "file://")
def prints_where_a_node_says_that_is_the_function(graph: Any, path: str) -> str:
    constant(graph, "text", WRITTEN)
    effect(function(graph, "inner", "text", stream=None), "PrintV2", "text", output_stream=Left("stream"))
    node(graph, "inner", "call", "text", stream=f"file://{path}")
    return "call"


@hostile("'stream'", "operation 'inner'", "numbers, types and shapes only")
def a_call_by_name_with_a_text(graph: Any, path: str) -> str:
    function(graph, "inner", "text")
    constant(graph, "text", WRITTEN)
    node(graph, "inner", "call", "text", stream=f"file://{path}")
    return "call"


@hostile("f.stream", "StatefulPartitionedCall", "file://")
def a_call_with_a_text(graph: Any, path: str) -> str:
    function(graph, "inner", "text")
    constant(graph, "text", WRITTEN)
    call(graph, "inner", "text", stream=f"file://{path}")
    return "call"


@hostile("output_stream", "PrintV2", "file://")
def a_stream_in_a_list(graph: Any, path: str) -> str:
    constant(graph, "text", WRITTEN)
    node(graph, "PrintV2", "print", "text", output_stream=["stderr", f"file://{path}"])
    return "print"


@hostile("output_stream", "PrintV2", "the function 'inner'")
def a_stream_that_is_a_function(graph: Any, path: str) -> str:
    constant(graph, "text", WRITTEN)
    function(graph, "inner", "text", stream=f"file://{path}")
    del graph.library.function[0].signature.attr[:]
    node(graph, "PrintV2", "print", "text", output_stream=Call("inner"))
    return "print"


@hostile("output_stream", "PrintV2", "left open")
def a_stream_left_open_in_the_graph(graph: Any, path: str) -> str:
    constant(graph, "text", WRITTEN)
    node(graph, "PrintV2", "print", "text", output_stream=Left(""))
    return "print"


@hostile("output_stream", "PrintV2", "file://")
def an_attribute_written_twice(graph: Any, path: str) -> program_pb2.StepProgram:
    """Whoever reads it takes the last one, as protobuf says."""
    constant(graph, "text", WRITTEN)
    first = node(GraphDef(), "PrintV2", "print", "text", output_stream="stderr").SerializeToString()
    second = field(5, field(1, b"output_stream") + field(2, field(2, f"file://{path}".encode())))
    return program(field(2, graph.SerializeToString() + field(1, first + second)), "print")


@hostile("output_stream", "PrintV2", "file://")
def an_attribute_of_two_kinds(graph: Any, path: str) -> program_pb2.StepProgram:
    """A number stands behind the text: some readers keep both."""
    constant(graph, "text", WRITTEN)
    first = node(GraphDef(), "PrintV2", "print", "text").SerializeToString()
    value = field(2, f"file://{path}".encode()) + b"\x18\x01"
    second = field(5, field(1, b"output_stream") + field(2, value))
    return program(field(2, graph.SerializeToString() + field(1, first + second)), "print")


@hostile("WriteFile", "'write'")
def a_graph_written_twice(graph: Any, path: str) -> program_pb2.StepProgram:
    """Both are one, as protobuf says."""
    constant(graph, "path", path)
    constant(graph, "text", WRITTEN)
    second = GraphDef()
    node(second, "WriteFile", "write", "path", "text")
    return program(b"".join(field(2, each.SerializeToString()) for each in (graph, second)), "write")


# Operations in functions, and what calls them.


def writing(graph: Any, name: str, path: str) -> Any:
    added = function(graph, name, "text")
    constant(added, "path", path)
    effect(added, "WriteFile", "path:output:0", "text")
    return added


@hostile("WriteFile", "function 'inner'")
def writes_in_a_function(graph: Any, path: str) -> str:
    constant(graph, "text", WRITTEN)
    writing(graph, "inner", path)
    call(graph, "inner", "text")
    return "call"


@hostile("WriteFile", "function 'unused'")
def writes_in_a_function_that_nobody_calls(graph: Any, path: str) -> None:
    writing(graph, "unused", path)


@hostile("WriteFile", "function 'body'")
def writes_in_a_loop(graph: Any, path: str) -> str:
    constant(graph, "text", WRITTEN)
    body = writing(graph, "body", path)
    body.signature.output_arg[0].type = STRING
    body.ret["done"] = "text"
    stop = function(graph, "stop", "text")
    stop.signature.output_arg[0].type = tf.bool.as_datatype_enum
    constant(stop, "never", False, tf.bool)
    stop.ret["done"] = "never:output:0"
    node(graph, "While", "loop", "text", T=[Type(STRING)], cond=Call("stop"), body=Call("body"))
    return "loop"


@hostile("WriteFile", "function 'then'")
def writes_in_a_branch(graph: Any, path: str) -> str:
    constant(graph, "text", WRITTEN)
    constant(graph, "yes", True, tf.bool)
    writing(graph, "then", path)
    function(graph, "otherwise", "text")
    node(
        graph, "If", "branch", "yes", "text", Tcond=Type(tf.bool.as_datatype_enum), Tin=[Type(STRING)],
        Tout=[Type(FLOAT)], then_branch=Call("then"), else_branch=Call("otherwise"),
    )  # fmt: skip
    return "branch"


@hostile("WriteFile", "function 'second'")
def writes_in_a_list_of_branches(graph: Any, path: str) -> str:
    constant(graph, "text", WRITTEN)
    constant(graph, "which", 1, tf.int32)
    function(graph, "first", "text")
    writing(graph, "second", path)
    node(
        graph, "Case", "branch", "which", "text", Tin=[Type(STRING)], Tout=[Type(FLOAT)],
        branches=[Call("first"), Call("second")],
    )  # fmt: skip
    return "branch"


@hostile("TensorDataset", "--admit TensorDataset")
def writes_for_each_element_of_a_data_set(graph: Any, path: str) -> str:
    constant(graph, "text", WRITTEN)
    shapes = [tf.TensorShape([]).as_proto()]
    writing(graph, "each", path)
    node(graph, "TensorDataset", "one", "text", Toutput_types=[Type(STRING)], output_shapes=shapes)
    node(
        graph, "MapDataset", "mapped", "one", f=Call("each"), Targuments=[], output_types=[Type(FLOAT)],
        output_shapes=shapes,
    )  # fmt: skip
    node(graph, "DatasetToSingleElement", "taken", "mapped", output_types=[Type(FLOAT)], output_shapes=shapes)
    return "taken"


@hostile("WriteFile", "function 'backward'")
def writes_in_a_gradient(graph: Any, path: str) -> None:
    function(graph, "forward", "text")
    writing(graph, "backward", path)
    graph.library.gradient.add(function_name="forward", gradient_func="backward")


@hostile("list of gradients", "'elsewhere'")
def a_gradient_that_is_not_there(graph: Any, path: str) -> None:
    function(graph, "forward", "text")
    graph.library.gradient.add(function_name="forward", gradient_func="elsewhere")


@hostile("list of gradients", "'elsewhere'")
def a_gradient_by_name_that_is_not_there(graph: Any, path: str) -> None:
    graph.library.registered_gradients.add(gradient_func="elsewhere", registered_op_type="MatMul")


@hostile("SymbolicGradient", "--admit SymbolicGradient")
def the_gradient_of_a_function_that_writes(graph: Any, path: str) -> str:
    constant(graph, "text", WRITTEN)
    constant(graph, "grown", 1.0, tf.float32)
    writing(graph, "inner", path)
    node(
        graph, "SymbolicGradient", "gradient", "text", "grown", f=Call("inner"), Tin=[Type(STRING), Type(FLOAT)],
        Tout=[Type(STRING)],
    )  # fmt: skip
    return "gradient"


@hostile("'elsewhere'", "StatefulPartitionedCall")
def a_function_that_is_not_there(graph: Any, path: str) -> str:
    constant(graph, "text", WRITTEN)
    call(graph, "elsewhere", "text")
    return "call"


@hostile("'elsewhere'", "Case")
def a_function_that_is_not_there_in_a_list(graph: Any, path: str) -> str:
    constant(graph, "which", 0, tf.int32)
    function(graph, "first")
    node(graph, "Case", "branch", "which", Tin=[], Tout=[Type(FLOAT)], branches=[Call("first"), Call("elsewhere")])
    return "branch"


@hostile("'elsewhere'", "StatefulPartitionedCall")
def a_function_that_is_not_there_beside_a_name(graph: Any, path: str) -> str:
    constant(graph, "text", WRITTEN)
    function(graph, "inner", "text")
    call(graph, "inner", "text", f=Call("elsewhere"))
    return "call"


@hostile("functions in attributes of each other")
def functions_in_attributes_of_each_other(graph: Any, path: str) -> str:
    constant(graph, "text", WRITTEN)
    function(graph, "inner", "text")
    nested = Call("inner")
    for _ in range(12):
        nested = Call("inner", {"f": nested})
    call(graph, "inner", "text", f=nested)
    return "call"


@hostile("f.what", "the function 'harmless'")
def a_function_that_a_default_names(graph: Any, path: str) -> str:
    constant(graph, "text", WRITTEN)
    function(graph, "harmless", "text")
    inner = function(graph, "inner", "text", what=Call("harmless"))
    effect(
        inner, "StatefulPartitionedCall", "text", Tin=[Type(STRING)], Tout=[Type(FLOAT)], f=Left("what"),
    )  # fmt: skip
    call(graph, "inner", "text", what=Call("harmless"))
    return "call"


@hostile("like one of TensorFlow's operations", "'Identity'")
def a_function_called_like_an_operation(graph: Any, path: str) -> str:
    constant(graph, "text", WRITTEN)
    function(graph, "Identity", "text")
    node(graph, "Identity", "call", "text", T=Type(STRING))
    return "call"


@hostile("like one of TensorFlow's operations", "'ReadFile'")
def a_function_called_like_a_refused_operation(graph: Any, path: str) -> str:
    constant(graph, "path", path)
    function(graph, "ReadFile", "text")
    node(graph, "ReadFile", "call", "path")
    return "call"


@hostile("is there twice", "'inner'")
def two_functions_of_one_name(graph: Any, path: str) -> str:
    constant(graph, "text", WRITTEN)
    function(graph, "inner", "text")
    function(graph, "inner", "text")
    call(graph, "inner", "text")
    return "call"


@hostile("has no name")
def a_function_without_a_name(graph: Any, path: str) -> None:
    function(graph, "", "text")


def chain(graph: Any, calls: Mapping[str, Sequence[str]]) -> str:
    constant(graph, "text", WRITTEN)
    for name, called in calls.items():
        target = function(graph, name, "text")
        for position, each in enumerate(called):
            effect(
                target, "StatefulPartitionedCall", "text", name=f"call_{position}",
                Tin=[Type(STRING)], Tout=[Type(FLOAT)], f=Call(each),
            )  # fmt: skip
    call(graph, next(iter(calls)), "text")
    return "call"


@hostile("'again'", "calls itself")
def a_function_that_calls_itself(graph: Any, path: str) -> str:
    return chain(graph, {"again": ["again"]})


@hostile("calls itself")
def functions_that_call_each_other(graph: Any, path: str) -> str:
    return chain(graph, {"one": ["two"], "two": ["three"], "three": ["one"]})


@hostile("nodes, those of called functions counted", "admits")
def functions_that_double(graph: Any, path: str) -> str:
    return chain(graph, {f"f{i}": [f"f{i + 1}"] * 2 for i in range(30)} | {"f30": []})


@hostile("calls within each other", "admits")
def functions_in_a_long_chain(graph: Any, path: str) -> str:
    return chain(graph, {f"f{i}": [f"f{i + 1}"] for i in range(150)} | {"f150": []})


@hostile("calls within each other", "admits")
def functions_in_a_long_chain_last_first(graph: Any, path: str) -> str:
    return chain(graph, {"f150": []} | {f"f{i}": [f"f{i + 1}"] for i in reversed(range(150))})


# Files.


@hostile("FixedUnigramCandidateSampler", "vocab_file", "no text")
def reads_a_line_of_a_file(graph: Any, path: str) -> str:
    constant(graph, "classes", [[0]], tf.int64)
    node(
        graph, "FixedUnigramCandidateSampler", "sample", "classes", num_true=1, num_sampled=1, unique=False,
        range_max=3, num_shards=1000, shard=0, vocab_file=path,
    )  # fmt: skip
    return "sample"


@hostile("left open", "file")
def reads_a_line_of_a_file_that_a_default_names(graph: Any, path: str) -> str:
    constant(graph, "text", WRITTEN)
    inner = function(graph, "inner", "text", file=path)
    constant(inner, "classes", [[0]], tf.int64)
    effect(
        inner, "FixedUnigramCandidateSampler", "classes:output:0", num_true=1, num_sampled=1, unique=False,
        range_max=3, num_shards=1000, shard=0, vocab_file=Left("file"),
    )  # fmt: skip
    call(graph, "inner", "text")
    return "call"


@hostile("ReadFile", "reads or writes files")
def reads_a_file(graph: Any, path: str) -> str:
    constant(graph, "path", path)
    node(graph, "ReadFile", "read", "path")
    node(graph, "StringToNumber", "shown", "read", out_type=Type(FLOAT))
    return "shown"


@hostile("WriteFile", "reads or writes files")
def writes_a_file(graph: Any, path: str) -> str:
    constant(graph, "path", path)
    constant(graph, "text", WRITTEN)
    node(graph, "WriteFile", "write", "path", "text")
    return "write"


@hostile("SaveV2", "saves or restores files")
def saves_tensors(graph: Any, path: str) -> str:
    constant(graph, "path", path)
    constant(graph, "names", ["a"])
    constant(graph, "slices", [""])
    constant(graph, "text", WRITTEN)
    node(graph, "SaveV2", "save", "path", "names", "slices", "text", dtypes=[Type(STRING)])
    return "save"


@hostile("HashTableV2", "--admit HashTableV2")
def fills_a_table_from_a_file(graph: Any, path: str) -> str:
    constant(graph, "path", path)
    node(graph, "HashTableV2", "table", key_dtype=Type(STRING), value_dtype=Type(INT64), shared_name="t")
    node(
        graph, "InitializeTableFromTextFileV2", "fill", "table", "path", key_index=-2, value_index=-1, vocab_size=-1,
        delimiter="\t",
    )  # fmt: skip
    return "fill"


@hostile("TextLineDataset", "reads data from files")
def reads_lines(graph: Any, path: str) -> str:
    constant(graph, "path", path)
    constant(graph, "none", "")
    constant(graph, "size", 0, tf.int64)
    shapes = [tf.TensorShape([]).as_proto()]
    node(graph, "TextLineDataset", "lines", "path", "none", "size")
    node(graph, "DatasetToSingleElement", "line", "lines", output_types=[Type(STRING)], output_shapes=shapes)
    node(graph, "StringToNumber", "shown", "line", out_type=Type(FLOAT))
    return "shown"


def attribute(op: str, *words: str, **attributes: Any) -> None:
    """Puts a program into the corpus that has a node of an operation with these attributes, which may not be there."""

    def build(graph: Any, path: str) -> str:
        node(graph, op, "n", **{k: v(path) if callable(v) else v for k, v in attributes.items()})
        return "n"

    build.__name__ = f"{op or 'nothing'}_{'_'.join(attributes) or 'alone'}"
    hostile(op, *words)(build)


for _op in """
    MatchingFiles ReadFile WriteFile RestoreV2 SaveV2 TFRecordDatasetV2 CreateSummaryFileWriter PyFunc EagerPyFunc
    HorovodAllreduce CollectiveReduceV2 ParseTensor
""".split():
    attribute(_op, REASONS[_op])

for _op in """
    ImmutableConst WholeFileReaderV2 Skipgram DecodeProtoV2 DumpTensor SaveDatasetV2 SnapshotDatasetV2 CacheDatasetV2 SqlDataset
    RemoteCall RpcClient DataServiceDatasetV4 Send _Recv Abort DebugIdentityV2 DatasetFromGraph XlaCustomCallV2 XlaCallModule
    IteratorFromStringHandleV2 DeserializeIterator BatchFunction _FusedMatMul TPUExecute TensorflowOfSomebodyElse
    CSRSparseMatrixToDense SparseMatrixMatMul SparseMatrixSparseCholesky DecodeJpeg DecodePng DecodeCompressed Empty
    InitializeTableFromDataset SymbolicGradient QuantizedMatMul SparseTensorToCSRSparseMatrix DeserializeManySparse
""".split():
    attribute(_op, "none of those that training steps", f"--admit {_op}")
attribute("", "none of those that training steps")

# Attributes.
attribute("MatMul", "filename", "numbers, types and shapes only", filename=lambda path: path)
attribute("NoOp", "_tpu_replicate", "does not know it", _tpu_replicate="cluster")
attribute("NoOp", "_unheard_of", "does not know it", _unheard_of=1)
attribute("NoOp", "_class", "loc:@", _class=["file:///etc/passwd"])
attribute("NoOp", "_gradient_op_type", "the function", _gradient_op_type=Call("inner"))
attribute("VarHandleOp", "--admit VarHandleOp", allowed_devices=["/job:ps/task:0"])
attribute("UnicodeDecode", "input_encoding", "one word", input_encoding="../../converter")
attribute("StatefulPartitionedCall", "config", "no text", config="x")
attribute("StatefulPartitionedCall", "executor_type", "DEFAULT", executor_type="ANOTHER")
attribute("Const", "value", "resource", value=tf.compat.v1.AttrValue().tensor.__class__(dtype=RESOURCE))
attribute(
    "ImageSummary", "a tensor of type variant", bad_color=tf.compat.v1.AttrValue().tensor.__class__(dtype=VARIANT)
)
attribute("MatMul", "a tensor of type", extra=tf.make_tensor_proto("text"))


@hostile("StatefulPartitionedCall", "config_proto", "neither hosts nor code")
def a_call_that_names_a_cluster(graph: Any, path: str) -> str:
    config = tf.compat.v1.ConfigProto()
    config.cluster_def.job.add(name="ps").tasks[0] = "192.0.2.1:2222"
    function(graph, "inner")
    call(graph, "inner").attr["config_proto"].s = config.SerializeToString()
    return "call"


@hostile("StatefulPartitionedCall", "config_proto", "neither hosts nor code")
def a_call_that_names_an_optimizer(graph: Any, path: str) -> str:
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.custom_optimizers.add(name="TensorRTOptimizer")
    function(graph, "inner")
    call(graph, "inner").attr["config_proto"].s = config.SerializeToString()
    return "call"


@hostile("device", "/job:ps/task:0", "worker's own host")
def a_node_of_another_host(graph: Any, path: str) -> str:
    node(graph, "NoOp", "there").device = "/job:ps/task:0/device:CPU:0"
    return "there"


@hostile("device", "function 'inner'", "grpc://")
def a_node_of_another_host_in_a_function(graph: Any, path: str) -> str:
    effect(function(graph, "inner"), "NoOp").device = "grpc://192.0.2.1:2222"
    call(graph, "inner")
    return "call"


@hostile("function 'inner'", "'_tpu_replicate'")
def an_unknown_attribute_of_a_function(graph: Any, path: str) -> None:
    fill(function(graph, "inner").attr["_tpu_replicate"], "cluster")


@hostile("function 'inner'", "'_composite_device'")
def an_unknown_attribute_of_an_argument(graph: Any, path: str) -> None:
    fill(function(graph, "inner", "text").arg_attr[0].attr["_composite_device"], "/job:ps")


# Memory. TensorFlow trusts what is in a variant: it looks at no index of a matrix that it has decoded.


def with_matrix(graph: Any, rows: Sequence[int], columns: Sequence[int], num_columns: int) -> Any:
    """Adds a function with a sparse matrix of ones, made of bytes: the entries of row i are columns[rows[i]:rows[i + 1]].

    In a branch, as TensorFlow looks for the matrix's shape when it imports a graph or a call, and not in branches.
    """
    forged = tensor_pb2.TensorProto(dtype=VARIANT, tensor_shape={})
    # Its metadata: that it was validated, and that it holds float32.
    value = forged.variant_val.add(type_name="tensorflow::CSRSparseMatrix", metadata=b"\x01\0\0\0\x01\0\0\0")
    shape, batches = np.array([len(rows) - 1, num_columns]), np.array([0, len(columns)], np.int32)
    for part in (shape, batches, np.int32(rows), np.int32(columns), np.ones(len(columns), np.float32)):
        value.tensors.add().CopyFrom(tf.make_tensor_proto(part))
    constant(graph, "text", forged.SerializeToString())
    inner = function(graph, "inner", "text")
    node(inner, "ParseTensor", "matrix", "text", out_type=Type(VARIANT))
    constant(graph, "which", 0, tf.int32)
    node(
        graph, "Case", "call", "which", "text", Tin=[Type(STRING)], Tout=[Type(FLOAT)],
        branches=[Call("inner"), Call("inner")], output_shapes=[tf.TensorShape([]).as_proto()],
    )  # fmt: skip
    return inner


FLOATS_BEHIND = 60_000


@hostile("ParseTensor", "makes objects of bytes")
def reads_what_lies_behind_a_tensor(graph: Any, path: str) -> program_pb2.StepProgram:
    """Returns how many of the floats behind two zeros are not zero."""
    inner = with_matrix(graph, range(FLOATS_BEHIND + 1), range(2, FLOATS_BEHIND + 2), 2)
    constant(inner, "zeros", [[0.0], [0.0]], tf.float32)
    node(inner, "SparseMatrixMatMul", "product", "matrix:output:0", "zeros:output:0", T=Type(FLOAT))
    constant(inner, "zero", 0.0, tf.float32)
    node(inner, "NotEqual", "found", "product:output:0", "zero:output:0", T=Type(FLOAT))
    node(inner, "Cast", "each", "found:z:0", SrcT=Type(tf.bool.as_datatype_enum), DstT=Type(FLOAT))
    constant(inner, "both", [0, 1], tf.int32)
    node(inner, "Sum", "number", "each:y:0", "both:output:0", T=Type(FLOAT), Tidx=Type(tf.int32.as_datatype_enum))
    inner.ret["done"] = "number:output:0"
    made = of_graph(graph)
    made.step.outputs[:] = ["call:0"]
    return made


@hostile("ParseTensor", "makes objects of bytes")
def writes_far_behind_a_tensor(graph: Any, path: str) -> program_pb2.StepProgram:
    inner = with_matrix(graph, [0, 1], [10**9], 2)
    node(inner, "CSRSparseMatrixToDense", "dense", "matrix:output:0", type=Type(FLOAT))
    constant(inner, "both", [0, 1], tf.int32)
    node(
        inner,
        "Sum",
        "total",
        "dense:dense_output:0",
        "both:output:0",
        T=Type(FLOAT),
        Tidx=Type(tf.int32.as_datatype_enum),
    )
    inner.ret["done"] = "total:output:0"
    made = of_graph(graph)
    made.step.outputs[:] = ["call:0"]
    return made


@hostile("ResourceScatterAdd", "function 'inner'")
def reads_what_lies_behind_its_updates(graph: Any, path: str) -> program_pb2.StepProgram:
    """Adds one number to a row of 60,000, and returns how many of them are not zero."""
    int32 = Type(tf.int32.as_datatype_enum)
    node(graph, "Placeholder", "row", dtype=Type(RESOURCE), shape=tf.compat.v1.TensorShape([]))
    inner = function(graph, "inner", "row")
    inner.signature.input_arg[0].type = RESOURCE
    constant(inner, "zeros", np.zeros((1, FLOATS_BEHIND)), tf.float32)
    effect(inner, "AssignVariableOp", "row", "zeros:output:0", name="grown", dtype=Type(FLOAT))
    constant(inner, "first", [0], tf.int32)
    constant(inner, "number", [[1.0]], tf.float32)
    constant(inner, "zero", 0.0, tf.float32)
    given = ("row", "first:output:0", "number:output:0", "^grown")
    effect(inner, "ResourceScatterAdd", *given, name="added", dtype=Type(FLOAT), Tindices=int32)
    node(inner, "ReadVariableOp", "read", "row", "^added", dtype=Type(FLOAT))
    node(inner, "NotEqual", "found", "read:value:0", "zero:output:0", T=Type(FLOAT))
    node(inner, "Cast", "each", "found:z:0", SrcT=Type(tf.bool.as_datatype_enum), DstT=Type(FLOAT))
    constant(inner, "both", [0, 1], tf.int32)
    node(inner, "Sum", "all", "each:y:0", "both:output:0", T=Type(FLOAT), Tidx=int32)
    inner.ret["done"] = "all:output:0"
    constant(graph, "which", 0, tf.int32)
    node(
        graph, "Case", "call", "which", "row", Tin=[Type(RESOURCE)], Tout=[Type(FLOAT)],
        branches=[Call("inner"), Call("inner")], output_shapes=[tf.TensorShape([]).as_proto()],
    )  # fmt: skip
    made = of_graph(graph)
    made.step.outputs[:], made.step.variables[:] = ["call:0"], ["row"]
    made.variables.add(tensor=program_pb2.Tensor(name="row", dtype="float32", shape=[1, 1]))
    return made


@hostile("DeserializeSparse", "'dtype'", "the type variant")
def a_matrix_in_a_sparse_tensor(graph: Any, path: str) -> str:
    constant(graph, "texts", ["", "", ""])
    node(graph, "DeserializeSparse", "read", "texts", dtype=Type(VARIANT), Tserialized=Type(STRING))
    return "read"


@hostile("Cast", "'DstT'", "function 'inner'", "the type resource")
def a_handle_made_in_a_function(graph: Any, path: str) -> str:
    effect(function(graph, "inner", "text"), "Cast", "text", SrcT=Type(STRING), DstT=Type(RESOURCE))
    call(graph, "inner")
    return "call"


@hostile("Placeholder", "'dtype'", "the type variant")
def a_handle_that_the_client_sends(graph: Any, path: str) -> None:
    node(graph, "Placeholder", "sent", dtype=Type(VARIANT), shape=tf.compat.v1.TensorShape([]))


@hostile("AddN", "'T'", "the type resource")
def a_reference_to_a_handle(graph: Any, path: str) -> None:
    node(graph, "AddN", "sum", N=1, T=Type(100 + RESOURCE))


@hostile("UnicodeEncode", "'types'", "the type variant")
def a_handle_in_a_list(graph: Any, path: str) -> None:
    node(graph, "UnicodeEncode", "made", types=[Type(FLOAT), Type(VARIANT)])


# What is no graph.


@hostile("MetaGraphDef", error=ProtocolError)
def bytes_that_are_no_graph(graph: Any, path: str) -> program_pb2.StepProgram:
    return program(b"\xff")


@hostile("MetaGraphDef", error=ProtocolError)
def a_name_that_is_no_text(graph: Any, path: str) -> program_pb2.StepProgram:
    return program(field(2, field(1, field(1, b"\xc3\x28") + field(2, b"NoOp"))))


@hostile("MetaGraphDef", error=ProtocolError)
def attributes_in_attributes_without_end(graph: Any, path: str) -> program_pb2.StepProgram:
    value = b""
    for _ in range(200):
        value = field(10, field(1, b"inner") + field(2, field(1, b"f") + field(2, value)))
    attributes = field(5, field(1, b"f") + field(2, value))
    return program(field(2, field(1, field(2, b"StatefulPartitionedCall") + attributes)))


CORPUS: list[tuple[str, Callable[[str], program_pb2.StepProgram]]] = [(each.name, each.build) for each in HOSTILE]

# Those that write `WRITTEN` into the file at their path, and those whose error shows what is in it.
WRITERS = """
    prints_to_a_file prints_where_a_default_says an_attribute_written_twice a_graph_written_twice
    writes_in_a_function writes_in_a_branch writes_in_a_list_of_branches
    writes_for_each_element_of_a_data_set writes_a_file saves_tensors
""".split()
READERS = """
    reads_a_line_of_a_file reads_a_line_of_a_file_that_a_default_names reads_a_file reads_lines
""".split()
