"""Programs are looked at whole: operations by name, attributes as TensorFlow will read them."""

import re

import pytest

from fdt.errors import ProgramRefusedError, ProtocolError
from fdt.program import admission
from fdt.program.operations import ALLOWED, ATTRIBUTES, HANDLES, OPERATIONS, REASONS, REFUSED
from fdt.v1 import program_pb2
from fdt.v1.graph_pb2 import AttrValue, FunctionDef, FunctionDefLibrary, GraphDef, NameAttrList, NodeDef, OpDef
from tests.helpers.hostile import CORPUS, HOSTILE, READERS, WRITERS, Hostile
from tests.helpers.step_operations import KEPT, Operations

ORDINARY = """
    MatMul BatchMatMulV2 Conv2D Conv2DBackpropFilter BiasAdd Relu ReluGrad Softmax LogSoftmax FusedBatchNormV3 AddV2 Mul
    SparseSoftmaxCrossEntropyWithLogits ReadVariableOp AssignVariableOp AssignAddVariableOp ResourceGather
    ResourceApplyAdam ResourceScatterNdAdd StatelessRandomUniformV2 StatefulPartitionedCall PartitionedCall While If
    StatelessWhile TensorListReserve TensorListSetItem Placeholder Const Identity IdentityN NoOp Cast Assert PrintV2
    LookupTableFindV2 StringSplitV2 StringFormat Timestamp CudnnRNNV3 TopKV2 ResizeBilinear Einsum
    CheckNumerics TensorArrayWriteV3 Multinomial Case EnsureShape CTCLossV2
"""
# What no pool runs, and what an operator can admit.
FOR_NOBODY = "PyFunc EagerPyFunc WriteFile ReadFile SaveV2 RestoreV2 TFRecordDatasetV2 HorovodAllreduce ParseTensor"
UNLISTED = """
    DecodeJpeg CSRSparseMatrixToDense SparseMatrixMatMul MapDataset RpcCall RemoteCall DebugIdentityV2 DatasetFromGraph _Send
    ImmutableConst Empty SparseMatrixSparseCholesky OperationOfSomebodyElse VarHandleOp
    ResourceScatterAdd ResourceScatterUpdate ResourceApplyAdamWithAmsgrad
    ResourceApplyAdadelta MutableHashTableV2
"""
# Attributes as TensorFlow writes them into ordinary programs.
ATTRIBUTES_OF = {
    ("PrintV2", "output_stream"): AttrValue(s=b"log(warning)"),
    ("PrintV2", "end"): AttrValue(s=b"file:///is/printed/here\n"),
    ("FixedUnigramCandidateSampler", "vocab_file"): AttrValue(s=b""),
    ("Conv2D", "padding"): AttrValue(s=b"SAME"),
    ("UnicodeDecode", "input_encoding"): AttrValue(s=b"UTF-16-BE"),
    ("StringFormat", "template"): AttrValue(s=b"grpc://{}:{}"),
    ("StringFormat", "placeholder"): AttrValue(s=b"{}"),
    ("MatMul", "_class"): AttrValue(list=AttrValue.ListValue(s=[b"loc:@gradients/dense/MatMul"])),
    ("MatMul", "_output_shapes"): AttrValue(list=AttrValue.ListValue()),
    ("Identity", "_gradient_op_type"): AttrValue(s=b"CustomGradient-341"),
    # A hundred programs of tests have this one, as it is.
    ("StatefulPartitionedCall", "config_proto"): AttrValue(
        s=b"\n\x07\n\x03CPU\x10\x01\n\x07\n\x03GPU\x10\x002\x02J\x008\x01\x82\x01\x00\x92\x01\x02J\x00"
    ),
}  # fmt: skip
LOCAL_DEVICES = ["", "/device:CPU:0", "/job:localhost/replica:0/task:0/device:GPU:3", "/cpu:0", "/GPU:*", "/gpu"]
OTHER_DEVICES = [
    "/job:worker/task:0", "/job:ps", "/job:localhost/task:1", "/replica:1", "/device:TPU:0", "/device:XLA_CPU:0",
    "grpc://127.0.0.1:2222", "/job:localhost/replica:0/task:0/device:CPU:0\n", "CPU",
]  # fmt: skip


def graph(*ops: str, function: str | None = None) -> GraphDef:
    nodes = [NodeDef(name=f"n/{op}", op=op) for op in ops]
    if function is None:
        return GraphDef(node=nodes)
    return GraphDef(library=FunctionDefLibrary(function=[FunctionDef(signature=OpDef(name=function), node_def=nodes)]))


@pytest.mark.parametrize("op", ORDINARY.split())
def test_ordinary(op: str) -> None:
    admission.admit_graph(graph(op))


@pytest.mark.parametrize("op", [*FOR_NOBODY.split(), *UNLISTED.split()])
@pytest.mark.parametrize("function", [None, "inner"])
def test_refused_by_name_wherever_it_is(op: str, function: str | None) -> None:
    """Where an operator can admit it, the message says how."""
    with pytest.raises(ProgramRefusedError, match=rf"{op}.*n/{op}.*{function or 'the graph'}") as caught:
        admission.admit_graph(graph("MatMul", op, function=function))
    told = str(caught.value)
    assert (f"--admit {op}" in told) == (op in UNLISTED.split())
    assert REASONS.get(op, "none of those that training steps are known to have") in told


@pytest.mark.parametrize("op", UNLISTED.split())
def test_what_an_operator_admits(op: str) -> None:
    admission.check_admissible(op)
    admission.admit_graph(graph("MatMul", op, function="inner"), [op])
    with pytest.raises(ProgramRefusedError, match="'MatrixSquare'"):
        admission.admit_graph(graph(op, "MatrixSquare"), [op])


@pytest.mark.parametrize("op", [*FOR_NOBODY.split(), "matmul", "", "Two words", "--no-walls", "A,B"])
def test_what_no_operator_admits(op: str) -> None:
    with pytest.raises(ValueError, match=r"no pool runs it|name of a TensorFlow operation"):
        admission.check_admissible(op)


def test_an_operation_that_is_admitted_besides_keeps_its_attributes_rules() -> None:
    node = NodeDef(op="DecodeJpeg", attr={"dct_method": AttrValue(s=b"INTEGER_FAST"), "channels": AttrValue()})
    admission.admit_graph(GraphDef(node=[node]), ["DecodeJpeg"])
    node.attr["path"].s = b"/etc/passwd"
    with pytest.raises(ProgramRefusedError, match="'path' of the operation 'DecodeJpeg'"):
        admission.admit_graph(GraphDef(node=[node]), ["DecodeJpeg"])


@pytest.mark.parametrize("kind", [20, 21, 120, 121])
@pytest.mark.parametrize("listed", [False, True])
def test_no_operation_makes_handles(kind: int, listed: bool) -> None:
    """But those that hand them on, or whose own lists they are; and an operator opens none."""
    value = AttrValue(list=AttrValue.ListValue(type=[1, kind])) if listed else AttrValue(type=kind)
    name = "variant" if kind % 100 == 21 else "resource"
    for op, attribute in [("DecodeRaw", "out_type"), ("Fill", "T"), ("DeserializeSparse", "dtype"), ("Empty", "dtype")]:
        whole = GraphDef(node=[NodeDef(op=op, attr={attribute: value})])
        with pytest.raises(ProgramRefusedError, match=rf"'{attribute}' of the operation '{op}'.*the type {name}"):
            admission.admit_graph(whole, ["DecodeRaw", "Empty"])
    for place in HANDLES[name]:
        op, _, attribute = place.partition(".")
        admission.admit_graph(GraphDef(node=[NodeDef(op=op, attr={attribute: value})]))


def test_each_operation_is_judged_once() -> None:
    names = [name for names in ALLOWED.values() for name in re.findall(r"([^\s()]+)(?:\([^)]*\))?", names)]
    names += [name for names in REFUSED.values() for name in names.split()]
    assert len(names) == len(set(names)) == len(OPERATIONS) + len(REASONS)
    assert {place.partition(".")[0] for places in HANDLES.values() for place in places} <= OPERATIONS.keys()
    # Of operations that an operator may admit there are rules, too.
    assert {attribute for rules in OPERATIONS.values() for attribute in rules} <= ATTRIBUTES.keys()


def test_the_steps_of_scripts_are_admitted() -> None:
    """Of the client's examples, the fidelity cases, the hard steps and the sweep's situations."""
    seen = Operations.read(KEPT)
    assert len(seen.names) > 200
    assert sorted(seen.names - OPERATIONS.keys()) == []
    assert sorted(seen.handles - HANDLES["resource"] - HANDLES["variant"]) == []


def test_the_number_of_operations() -> None:
    """Who adds one states in the list what it makes of hostile input, and has seen it in a training step."""
    assert len(OPERATIONS) == 596


@pytest.mark.parametrize(("op", "attribute"), ATTRIBUTES_OF, ids="-".join)
def test_ordinary_attributes(op: str, attribute: str) -> None:
    node = NodeDef(op=op, attr={attribute: ATTRIBUTES_OF[op, attribute]})
    admission.admit_graph(GraphDef(node=[node]))
    # And of no other operation, unless all may have it.
    if not attribute.startswith("_") and node.attr[attribute].s:
        node.op = "NoOp"
        with pytest.raises(ProgramRefusedError, match=rf"'{attribute}' of the operation 'NoOp'"):
            admission.admit_graph(GraphDef(node=[node]))


@pytest.mark.parametrize("device", LOCAL_DEVICES)
def test_devices_of_the_workers_own_host(device: str) -> None:
    admission.admit_graph(GraphDef(node=[NodeDef(op="MatMul", device=device)]))


@pytest.mark.parametrize("device", OTHER_DEVICES)
def test_devices_elsewhere(device: str) -> None:
    with pytest.raises(ProgramRefusedError, match=re.escape(repr(device))):
        admission.admit_graph(GraphDef(node=[NodeDef(op="MatMul", name="far", device=device)]))


def test_a_function_with_all_that_a_call_has() -> None:
    """TensorFlow 1 writes a call's attributes beside the function of a gradient."""
    whole = graph("MatMul", function="inner")
    inner = NameAttrList(
        name="inner", attr={"f": AttrValue(func=NameAttrList(name="inner")), "Tin": AttrValue(type=20)}
    )
    whole.node.add(name="call", op="StatefulPartitionedCall", attr={"f": AttrValue(func=inner)})
    admission.admit_graph(whole)


@pytest.mark.parametrize("program", HOSTILE, ids=lambda case: case.name)
def test_hostile(program: Hostile) -> None:
    raw = program.build("/of/a/hostile/program").SerializeToString()
    with pytest.raises(program.error) as caught:
        admission.examine(raw)
    assert type(caught.value) is program.error
    message = str(caught.value)
    missing = [word for word in program.words if word not in message]
    assert not missing, message
    assert len(message) < 1000 and message.isprintable()


def test_the_corpus_is_large() -> None:
    names = [name for name, _ in CORPUS]
    assert len(names) == len(set(names)) >= 100
    assert {*WRITERS, *READERS} <= set(names)


@pytest.mark.parametrize("length", [1000, 4_000_000])
def test_a_name_without_end_is_cut(length: int) -> None:
    whole = GraphDef(node=[NodeDef(name="\x1b[2J" + "n" * length, op="o" * length)])
    with pytest.raises(ProgramRefusedError) as caught:
        admission.admit_graph(whole)
    assert len(str(caught.value)) < 1000 and str(caught.value).isprintable()


def test_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = graph("MatMul", "Relu", function="inner")
    whole.node.add(op="NoOp")
    raw = program_pb2.StepProgram(step=program_pb2.Function(meta_graph=b"\x12\x00")).SerializeToString()
    admission.admit_graph(whole)
    admission.examine(raw)
    for name, limit, said in [("NODES", 2, "3 nodes.*admits 2"), ("FUNCTIONS", 0, "1 functions.*admits 0")]:
        with monkeypatch.context() as patch, pytest.raises(ProgramRefusedError, match=said):
            patch.setattr(admission, f"MAX_{name}", limit)
            admission.admit_graph(whole)
    monkeypatch.setattr(admission, "MAX_BYTES", len(raw) - 1)
    with pytest.raises(ProgramRefusedError, match=rf"{len(raw)} bytes.*admits {len(raw) - 1}"):
        admission.examine(raw)


def test_malformed_program() -> None:
    with pytest.raises(ProtocolError, match="StepProgram"):
        admission.examine(b"\xff")
