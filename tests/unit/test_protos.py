"""The committed stubs are those of the committed .proto files: `make protos` would change nothing."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

_ROOT = Path(__file__).parents[2]
_PROTOS = _ROOT / "protos"
_SOURCES = sorted(_PROTOS.rglob("*.proto"))
_KINDS = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")
_LIMIT_S = 60


def test_stubs_are_not_stale(tmp_path: Path) -> None:
    """What they describe is compared, not their text: they are made by an older compiler than the one here."""
    pytest.importorskip("grpc_tools", reason="grpcio-tools is for developers")
    described = tmp_path / "descriptors"
    sources = [str(path.relative_to(_PROTOS)) for path in _SOURCES]
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", "-I", "protos", f"--descriptor_set_out={described}", *sources],
        cwd=_ROOT, timeout=_LIMIT_S, check=True,
    )  # fmt: skip
    made = {file.name: file for file in descriptor_pb2.FileDescriptorSet.FromString(described.read_bytes()).file}
    assert sorted(made) == sorted(sources)
    stale = [source for source in sources if _described_by_stub(source) != _plain(made[source])]
    assert stale == [], "run `make protos`"


def _described_by_stub(source: str) -> descriptor_pb2.FileDescriptorProto:
    module = importlib.import_module(source.removesuffix(".proto").replace("/", ".") + "_pb2")
    return _plain(descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb))


def _plain(file: descriptor_pb2.FileDescriptorProto) -> descriptor_pb2.FileDescriptorProto:
    """Returns it without the names of JSON, which one compiler writes and the other does not."""
    waiting = list(file.message_type)
    while waiting:
        message = waiting.pop()
        waiting += message.nested_type
        for field in message.field:
            field.ClearField("json_name")
    return file


def test_every_stub_has_its_source() -> None:
    stubs = {path.name for kind in _KINDS for path in (_ROOT / "fdt" / "v1").glob(f"*{kind}")}
    assert stubs == {source.stem + kind for source in _SOURCES for kind in _KINDS}
