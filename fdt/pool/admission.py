"""What a program may do in a pool: every operation of its graph and of its function library is looked at by name.

A program is data from elsewhere. It may compute; it may not run Python, touch files, talk to the network, or bring in
further graphs that nobody has looked at.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from fdt import wire
from fdt.errors import ProgramRefusedError
from protos import graph_pb2, program_pb2

# Reason -> names of operations, as a regular expression that must match the whole name.
_REFUSED: dict[str, str] = {
    "it runs Python": r"(Eager)?PyFunc(Stateless)?|.*NumpyFunction.*",
    "it reads or writes files": (
        r"ReadFile|WriteFile|MatchingFiles|RecordInput|ImmutableConst|FileSystemSetConfiguration"
        r"|.*Reader(V\d+)?|Reader(Num|Read|Reset|Restore|Serialize).*"
        r"|InitializeTableFromTextFile.*|GenerateVocabRemapping|LoadAndRemapMatrix|.*BigQuery.*|Gcs.*"
        r"|.*Calibration.*Saver|DumpTensor|DecodeProto.*|EncodeProto.*|IO.*Read.*|.*TRTResource.*|TRTEngineOp"
    ),
    "it saves or restores files": (
        r"(Sharded|Distributed|DTensor|_)?(Save|Restore)(V\d+|Slices?)?|MergeV2Checkpoints|Checkpoint.*"
        r"|.*Snapshot(Chunks?|Nested)?(Dataset|Reader).*|ListSnapshot.*|(Save|Load)Dataset(V\d+)?|Snapshot"
    ),
    "it reads data from files": (
        r"(Experimental)?(TFRecord|TextLine|FixedLengthRecord|CSV|Sql|LMDB|MatchingFiles|.*Snapshot.*)Dataset(V\d+)?"
        r"|CacheDataset(V\d+)?|(Experimental)?(Dataset|Iterator)ToTFRecord|(Kafka|Kinesis|Arrow|Avro|Parquet).*"
    ),
    "it writes summaries": (
        r".*Summary(File|Db)?Writer|Write\w*Summary|.*SetSummaryWriter|(Create|Flush|Close)Summary\w*|ImportEvent"
    ),
    "it talks to other processes": (
        r"Rpc.*|.*RpcFuture.*|Remote.*|_?(Host)?(Send|Recv)|_?Nccl.*|Collective.*|Grpc.*|.*DataService.*"
        r"|(Un)?RegisterDataset(V\d+)?|WorkerHeartbeat|DTensor.*|CopyToMesh.*|Relayout.*|(Broadcast|Shard).*ToMesh.*"
        r"|Horovod.*|Byteps.*|Xla(AllReduce|ReduceScatter|Send.*|Recv.*)|_Xla(Send|Recv).*|.*(In|Out)feed.*"
    ),
    "it drives a TPU": (r".*(TPU|Tpu).*|.*SparseCore.*|XlaSparseDense.*|GetMinibatch.*|StoreMinibatch.*"),
    "it ends the process": r"Abort",
    "it is a debugger's": r"Debug.*|Copy(Host)?|.*ModelAnalysis.*|StatsAggregator.*|.*IteratorGetModelProto",
    "it brings in code that cannot be looked at": (
        r"DatasetFromGraph|XlaCustomCall.*|XlaCallModule|XlaLaunch.*|_?Xla(Compile|Run|Host).*|Mlir.*|TfLite.*|Lite.*"
        r"|Delegate.*|.*(Deserialize|Serialize)Iterator|.*IteratorFromStringHandle.*|(Ifrt|IFRT).*|_XlaAot.*"
        r"|.*FusedGraphExecute.*|.*LoadLibrary.*|Compile.*|Execute.*"
    ),
}
_PATTERNS = [(reason, re.compile(pattern)) for reason, pattern in _REFUSED.items()]


def refusal(op: str) -> str | None:
    """Returns why an operation is not admitted; None if it is."""
    return next((reason for reason, pattern in _PATTERNS if pattern.fullmatch(op)), None)


def admit(program: program_pb2.StepProgram) -> None:
    """Looks at the whole of a program.

    Raises:
        ProgramRefusedError: An operation, named, is not admitted.
        ProtocolError: The graph cannot be read.
    """
    admit_graph(wire.decode(graph_pb2.MetaGraphDef, program.step.meta_graph).graph_def)


def admit_graph(graph: graph_pb2.GraphDef) -> None:
    """Looks at every node of a graph and of its function library.

    Raises:
        ProgramRefusedError: An operation, named, is not admitted.
    """
    library = {function.signature.name for function in graph.library.function}
    for place, nodes in _nodes(graph):
        for node in nodes:
            _admit_node(place, node)
            _admit_functions(place, node.name, node.attr, library)
    for function in graph.library.function:
        _admit_functions(f"function {function.signature.name!r}", "its attributes", function.attr, library)
    for gradient in graph.library.gradient:
        _admit_function("the library's gradients", gradient.function_name, gradient.gradient_func, library)
    for registered in graph.library.registered_gradients:
        _admit_function("the library's gradients", registered.registered_op_type, registered.gradient_func, library)


def _nodes(graph: graph_pb2.GraphDef) -> Iterator[tuple[str, Iterable[graph_pb2.NodeDef]]]:
    yield "the graph", graph.node
    for function in graph.library.function:
        yield f"function {function.signature.name!r}", function.node_def


def _admit_node(place: str, node: graph_pb2.NodeDef) -> None:
    reason = refusal(node.op)
    # To a log it may print, to a file not.
    if reason is None and node.op == "PrintV2" and node.attr["output_stream"].s.startswith(b"file:"):
        reason = "it prints to a file"
    if reason is not None:
        raise ProgramRefusedError(
            f"The pool does not run the operation {node.op!r} (node {node.name!r} in {place}): {reason}. "
            f"Take it out of the training step; what must be read or written belongs before `fit` or in a callback."
        )


def _admit_functions(place: str, name: str, attributes: Mapping[str, graph_pb2.AttrValue], library: set[str]) -> None:
    for value in attributes.values():
        for function in (*([value.func] if value.HasField("func") else []), *value.list.func):
            _admit_function(place, name, function.name, library)
            _admit_functions(place, name, function.attr, library)


def _admit_function(place: str, name: str, function: str, library: set[str]) -> None:
    if function and function not in library:
        raise ProgramRefusedError(
            f"Node {name!r} in {place} calls {function!r}, which is not in the program's function library, so nobody "
            f"can tell what it does. Export the program whole."
        )
