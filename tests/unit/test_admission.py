"""Programs are looked at whole, by name."""

import pytest

from fdt.errors import ProgramRefusedError, ProtocolError
from fdt.pool import admission
from protos import program_pb2
from protos.graph_pb2 import AttrValue, FunctionDef, FunctionDefLibrary, GraphDef, NameAttrList, NodeDef, OpDef

ORDINARY = """
    MatMul BatchMatMulV2 Conv2D Conv2DBackpropFilter BiasAdd Relu ReluGrad Softmax LogSoftmax FusedBatchNormV3 AddV2 Mul
    SparseSoftmaxCrossEntropyWithLogits ReadVariableOp AssignVariableOp AssignAddVariableOp VarHandleOp ResourceGather
    ResourceApplyAdam ResourceScatterAdd StatelessRandomUniformV2 StatefulPartitionedCall PartitionedCall While If
    StatelessWhile TensorListReserve TensorListSetItem Placeholder Const Identity IdentityN NoOp Cast Assert PrintV2
    LookupTableFindV2 LookupTableImportV2 MutableHashTableV2 SerializeTensor StringSplitV2 StringFormat Timestamp
    CudnnRNNV3 TopKV2 NonMaxSuppressionV5 ResizeBilinear Einsum XlaDot CheckNumerics DecodeJpeg TensorArrayWriteV3
    TensorSliceDataset BatchDatasetV2 ShuffleDatasetV3 MapDataset Multinomial Case EnsureShape CTCLossV2
"""
REFUSED = """
    PyFunc EagerPyFunc WriteFile ReadFile SaveV2 RestoreV2 TFRecordDatasetV2 CreateSummaryFileWriter WriteScalarSummary
    RpcCall RemoteCall HorovodAllreduce DebugIdentityV2 DatasetFromGraph _Send CollectiveReduceV2 ImmutableConst
"""


def graph(*ops: str, function: str | None = None) -> GraphDef:
    nodes = [NodeDef(name=f"n/{op}", op=op) for op in ops]
    if function is None:
        return GraphDef(node=nodes)
    return GraphDef(library=FunctionDefLibrary(function=[FunctionDef(signature=OpDef(name=function), node_def=nodes)]))


@pytest.mark.parametrize("op", ORDINARY.split())
def test_ordinary(op: str) -> None:
    admission.admit_graph(graph(op))


@pytest.mark.parametrize("op", REFUSED.split())
@pytest.mark.parametrize("function", [None, "inner"])
def test_refused_by_name_wherever_it_is(op: str, function: str | None) -> None:
    with pytest.raises(ProgramRefusedError, match=rf"{op}.*n/{op}.*{function or 'the graph'}"):
        admission.admit_graph(graph("MatMul", op, function=function))


def test_a_function_cannot_hide_an_operation() -> None:
    whole = graph("MatMul", function="PyFunc")
    whole.node.add(name="call", op="PyFunc")
    with pytest.raises(ProgramRefusedError, match="PyFunc"):
        admission.admit_graph(whole)


@pytest.mark.parametrize("stream", [b"file:///etc/passwd", b"file:x"])
def test_print_to_file(stream: bytes) -> None:
    with pytest.raises(ProgramRefusedError, match="prints to a file"):
        admission.admit_graph(GraphDef(node=[NodeDef(op="PrintV2", attr={"output_stream": AttrValue(s=stream)})]))
    admission.admit_graph(GraphDef(node=[NodeDef(op="PrintV2", attr={"output_stream": AttrValue(s=b"stderr")})]))


@pytest.mark.parametrize(
    "value",
    [
        AttrValue(func=NameAttrList(name="nowhere")),
        AttrValue(list=AttrValue.ListValue(func=[NameAttrList(name="inner"), NameAttrList(name="nowhere")])),
        AttrValue(func=NameAttrList(name="inner", attr={"f": AttrValue(func=NameAttrList(name="nowhere"))})),
    ],
)
def test_functions_that_are_not_there(value: AttrValue) -> None:
    whole = graph("MatMul", function="inner")
    whole.node.add(name="call", op="PartitionedCall", attr={"f": AttrValue(func=NameAttrList(name="inner"))})
    admission.admit_graph(whole)
    whole.node.add(name="other", op="PartitionedCall", attr={"f": value})
    with pytest.raises(ProgramRefusedError, match=r"other.*nowhere"):
        admission.admit_graph(whole)


def test_gradient_functions_that_are_not_there() -> None:
    whole = graph("MatMul", function="inner")
    whole.library.gradient.add(function_name="inner", gradient_func="nowhere")
    with pytest.raises(ProgramRefusedError, match="nowhere"):
        admission.admit_graph(whole)


def test_malformed_graph() -> None:
    with pytest.raises(ProtocolError, match="MetaGraphDef"):
        admission.admit(program_pb2.StepProgram(step=program_pb2.Function(meta_graph=b"\xff")))
