"""The committed stubs are those of the committed .proto files: `make protos` would change nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_SOURCES = sorted((_ROOT / "protos").glob("*.proto"))
_KINDS = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")
_LIMIT_S = 60


def test_stubs_are_not_stale(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools is for developers")
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    sources = [str(path.relative_to(_ROOT)) for path in _SOURCES]
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", "-I", ".", *outputs, *sources],
        cwd=_ROOT, timeout=_LIMIT_S, check=True,
    )  # fmt: skip
    made = {path.name: path.read_text() for path in (tmp_path / "protos").iterdir()}
    assert sorted(made) == sorted(source.stem + kind for source in _SOURCES for kind in _KINDS)
    stale = [name for name, text in sorted(made.items()) if (_ROOT / "protos" / name).read_text() != text]
    assert stale == [], "run `make protos`"


def test_every_stub_has_its_source() -> None:
    stubs = {path.name for kind in _KINDS for path in (_ROOT / "protos").glob(f"*{kind}")}
    assert stubs == {source.stem + kind for source in _SOURCES for kind in _KINDS}
