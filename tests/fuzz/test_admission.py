"""Whatever a program's bytes are, admission says what is wrong with them, or nothing is; and it comes to an end."""

import contextlib
import os
from collections.abc import Callable

import pytest

pytest.importorskip("hypothesis", reason="hypothesis is for developers")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fdt.errors import ProgramRefusedError, ProtocolError
from fdt.pool.examiner import LIMIT_S
from fdt.program import admission
from fdt.program.operations import ANNOTATIONS, ATTRIBUTES, HANDLES, OPERATIONS, REASONS
from fdt.transport import wire
from fdt.v1 import graph_pb2, program_pb2
from fdt.v1.graph_pb2 import AttrValue, FunctionDef, GraphDef, NameAttrList, NodeDef, OpDef, TensorProto

EXAMPLES = int(os.environ.get("FDT_FUZZ_EXAMPLES", "150"))
FUZZ = settings(
    max_examples=EXAMPLES, deadline=1000 * LIMIT_S, derandomize="FDT_FUZZ_EXAMPLES" not in os.environ, database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip

NAMES = st.sampled_from(["", "inner", "outer", "again", "MatMul", "ReadFile", "n" * 300]) | st.text(max_size=5)
OPS = st.sampled_from(sorted(OPERATIONS)) | st.sampled_from(sorted(REASONS)) | NAMES
ATTRIBUTE_NAMES = st.sampled_from(sorted({*ATTRIBUTES, "T", "Tin", "dtype", *ANNOTATIONS, "_unheard_of", ""})) | NAMES
BYTES = st.sampled_from([b"", b"stderr", b"SAME", b"loc:@x", b"file:///x", b"/x", b"\xff", b"\n\x07\n\x03CPU\x10\x01"])
TYPES = st.sampled_from([0, 1, 7, 20, 21, 121, 2**31 - 1])
TENSORS = st.builds(TensorProto, dtype=TYPES)


def values(functions: "st.SearchStrategy[NameAttrList]") -> "st.SearchStrategy[AttrValue]":
    lists = st.builds(
        AttrValue.ListValue,
        s=st.lists(BYTES, max_size=2),
        type=st.lists(TYPES, max_size=3),
        tensor=st.lists(TENSORS, max_size=2),
        func=st.lists(functions, max_size=2),
    )
    kinds: list[st.SearchStrategy[AttrValue]] = [
        st.builds(AttrValue),
        st.builds(AttrValue, s=BYTES | st.binary(max_size=20)),
        st.builds(AttrValue, placeholder=NAMES),
        st.builds(AttrValue, tensor=TENSORS),
        st.builds(AttrValue, type=TYPES),
        st.builds(AttrValue, func=functions),
        st.builds(AttrValue, list=lists),
        st.builds(AttrValue, s=BYTES, func=functions, list=lists),
    ]
    return st.one_of(kinds)


FUNCTIONS = st.recursive(
    st.builds(NameAttrList, name=NAMES),
    lambda inner: st.builds(NameAttrList, name=NAMES, attr=st.dictionaries(ATTRIBUTE_NAMES, values(inner), max_size=2)),
    max_leaves=8,
)
ATTRIBUTE_TREES = st.dictionaries(ATTRIBUTE_NAMES, values(FUNCTIONS), max_size=3)
DEVICES = st.sampled_from(["", "/cpu:0", "/job:ps/task:0"]) | st.text(max_size=5)
NODES = st.builds(NodeDef, name=NAMES, op=OPS, device=DEVICES, attr=ATTRIBUTE_TREES)
BODIES = st.builds(
    FunctionDef,
    signature=st.builds(OpDef, name=NAMES),
    node_def=st.lists(NODES, max_size=3),
    attr=ATTRIBUTE_TREES,
)


@st.composite
def graphs(draw: Callable) -> GraphDef:
    graph = GraphDef(node=draw(st.lists(NODES, max_size=4)))
    graph.library.function.extend(draw(st.lists(BODIES, max_size=4)))
    return graph


def examined(raw: bytes) -> str:
    """Examines a program; returns how that ended. Any other error than admission's own goes on."""
    try:
        admission.examine(raw)
    except (ProgramRefusedError, ProtocolError) as error:
        assert len(str(error)) < 2000 and str(error).isprintable()
        return type(error).__name__
    return "admitted"


def program(graph: GraphDef) -> bytes:
    meta_graph = graph_pb2.MetaGraphDef(graph_def=graph).SerializeToString()
    return program_pb2.StepProgram(step=program_pb2.Function(meta_graph=meta_graph)).SerializeToString()


def ordinary() -> bytes:
    """Returns a program that has something of everything."""
    call = AttrValue(func=NameAttrList(name="inner"))
    settings = AttrValue(
        s=b"\n\x07\n\x03CPU\x10\x01\n\x07\n\x03GPU\x10\x002\x02J\x008\x01\x82\x01\x00\x92\x01\x02J\x00"
    )
    conv = {"padding": AttrValue(s=b"SAME"), "_class": AttrValue(list=AttrValue.ListValue(s=[b"loc:@x"]))}
    graph = GraphDef(
        node=[
            NodeDef(name="value", op="Const", attr={"value": AttrValue(tensor=TensorProto(dtype=1))}),
            NodeDef(name="conv", op="Conv2D", device="/device:CPU:0", attr=conv),
            NodeDef(name="call", op="StatefulPartitionedCall", attr={"f": call, "config_proto": settings}),
            NodeDef(name="print", op="PrintV2", attr={"output_stream": AttrValue(s=b"stderr")}),
        ]
    )
    graph.library.function.add(signature=OpDef(name="inner"), node_def=[NodeDef(name="sum", op="AddV2")])
    return program(graph)


def test_the_ordinary_program_is_admitted() -> None:
    assert examined(ordinary()) == "admitted"


@FUZZ
@given(st.data())
def test_changed_bytes(data: st.DataObject) -> None:
    raw = bytearray(ordinary())
    for _ in range(data.draw(st.integers(1, 8))):
        position = data.draw(st.integers(0, len(raw)))
        length = data.draw(st.integers(0, 4))
        raw[position : position + length] = data.draw(st.binary(max_size=6))
    examined(bytes(raw))


@FUZZ
@given(st.binary(max_size=200))
def test_bytes_of_any_kind(raw: bytes) -> None:
    examined(raw)
    examined(program_pb2.StepProgram(step=program_pb2.Function(meta_graph=raw)).SerializeToString())
    with contextlib.suppress(ValueError):
        list(wire.fields(raw))


@FUZZ
@given(graphs())
def test_graphs(graph: GraphDef) -> None:
    """Whatever is admitted holds nothing that is refused, and leaves nothing open."""
    if examined(program(graph)) != "admitted":
        return
    library = {function.signature.name for function in graph.library.function}
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    assert all(node.op in OPERATIONS or node.op in library for node in nodes)
    assert not [node for node in nodes if "file://" in str(node.attr) and node.op == "PrintV2"
                and b"file:" in node.attr["output_stream"].s]  # fmt: skip
    assert not [node for node in nodes if any(value.HasField("placeholder") for value in node.attr.values())]
    handles = [
        f"{node.op}.{name}"
        for node in nodes
        for name, value in node.attr.items()
        if name[:1] != "_" and not {value.type, *value.list.type}.isdisjoint({20, 21, 121})
    ]
    assert set(handles) <= HANDLES["resource"] | HANDLES["variant"]
    assert not [node for node in nodes if node.device not in ("", "/cpu:0")]


@FUZZ
@given(st.binary(max_size=60))
def test_settings_of_calls(raw: bytes) -> None:
    graph = GraphDef(node=[NodeDef(op="PartitionedCall", attr={"config_proto": AttrValue(s=raw)})])
    assert (examined(program(graph)) == "admitted") == (not raw or bool(ATTRIBUTES["config_proto"].text(raw)))
