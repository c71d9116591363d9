"""`fdt setup` up to where Horovod's own build begins; that takes minutes, and is part of `make install`."""

import argparse
import re
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from fdt.cli import doctor, setup
from fdt.errors import UsageError

_UV = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["tool"]["uv"]


def test_it_builds_with_what_the_lock_is_built_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _UV["extra-build-variables"]["horovod"]:
        monkeypatch.delenv(name, raising=False)
    environment = setup.build_environment(tmp_path, "2.18.1")
    assert _UV["extra-build-variables"]["horovod"].items() <= environment.items()
    needs = [Requirement(need) for need in _UV["extra-build-dependencies"]["horovod"] if isinstance(need, str)]
    # cffi's own need stands among them, since each file has to have its hash.
    assert {need.name for need in needs} == {*setup._BUILD_NEEDS} - {"pycparser"}
    pinned = dict(re.findall(r"^([a-z]+)==(\S+)", setup._REQUIREMENTS.read_text(), re.MULTILINE))
    assert all(need.specifier.contains(pinned[need.name]) for need in needs)
    assert f"horovod=={pinned['horovod']}" == setup.HOROVOD


def test_what_the_user_sets_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_WITH_GLOO", "0")
    monkeypatch.setenv("HOROVOD_GPU_OPERATIONS", "NCCL")
    environment = setup.build_environment(tmp_path, "2.18.1")
    assert (environment["HOROVOD_WITH_GLOO"], environment["HOROVOD_GPU_OPERATIONS"]) == ("0", "NCCL")


def test_the_build_has_no_symbols_for_a_debugger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CMAKE_TOOLCHAIN_FILE", raising=False)
    toolchain = Path(setup.build_environment(tmp_path, "2.18.1")["CMAKE_TOOLCHAIN_FILE"])
    assert toolchain.is_relative_to(tmp_path) and '"-O2 -DNDEBUG"' in toolchain.read_text()
    monkeypatch.setenv("CMAKE_TOOLCHAIN_FILE", "/the/users.cmake")
    assert setup.build_environment(tmp_path, "2.18.1")["CMAKE_TOOLCHAIN_FILE"] == "/the/users.cmake"


@pytest.mark.parametrize(("version", "num_headers"), [("2.16.2", 0), ("2.18.1", 0), ("2.19.0", 7), ("2.21.0rc1", 7)])
def test_headers_that_tensorflow_dropped_are_made(version: str, num_headers: int, tmp_path: Path) -> None:
    environment = setup.build_environment(tmp_path, version)
    made = [path for path in tmp_path.rglob("*.h") if path.is_file()]
    assert len(made) == num_headers
    # Horovod's xla_mpi_ops.cc names them so.
    assert all(str(path.relative_to(tmp_path / "headers")).startswith("tensorflow/compiler/") for path in made)
    assert (f"-I{tmp_path / 'headers'}" in environment.get("CXXFLAGS", "")) == bool(num_headers)


def test_a_horovod_that_works_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "probe", lambda name: ("0.28.1 with tensorflow, gloo", None))
    monkeypatch.setattr(setup, "_install", lambda *_: pytest.fail("nothing is to be installed"))
    assert setup.setup(argparse.Namespace(rebuild=False)) == 0
    assert "nothing to do (--rebuild" in capsys.readouterr().out


def test_without_a_compiler_nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "probe", lambda name: ("No module named 'horovod'", "fdt setup"))
    monkeypatch.setattr(setup, "_install", lambda *_: pytest.fail("nothing is to be installed"))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(UsageError, match=r"g\+\+ or CXX was not found. On Debian and Ubuntu: apt-get install g\+\+"):
        setup.setup(argparse.Namespace(rebuild=False))


def test_who_installs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[list[str]] = []
    kept = set(Path(tempfile.gettempdir()).glob("fdt-setup-*.log"))

    def ran(command: list[str], **_: object) -> object:
        asked.append(command)
        return argparse.Namespace(returncode=0)

    monkeypatch.setattr(setup.subprocess, "run", ran)
    monkeypatch.setattr(setup.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(setup, "_is_installed", lambda name: name != "psutil")
    setup._build(tmp_path, "2.18.1")
    monkeypatch.setattr(setup.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(setup.shutil, "which", lambda name: "/bin/uv")
    setup._build(tmp_path, "2.18.1")
    with_pip, with_uv = asked[:3], asked[3:]
    assert all(command[:4] == [sys.executable, "-P", "-m", "pip"] for command in with_pip)
    assert all(command[:3] == ["/bin/uv", "pip", "install"] for command in with_uv)
    assert "--force-reinstall" in with_pip[2] and "--reinstall" in with_uv[2]
    assert all("--require-hashes" in command for command in asked)
    files = [[Path(command[command.index("--requirement") + 1]) for command in each] for each in (with_pip, with_uv)]
    assert files[0] == files[1]
    named = [re.findall(r"^([a-z]+)==", file.read_text(), re.MULTILINE) for file in files[0]]
    assert named == [[*setup._BUILD_NEEDS], ["psutil"], ["horovod"]], "what is there stays"
    assert set(Path(tempfile.gettempdir()).glob("fdt-setup-*.log")) <= kept, "what went well is not kept"


def test_a_build_that_fails_tells_its_errors_and_where_the_rest_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pip = tmp_path / "python"
    pip.write_text("#!/bin/sh\nseq 3000\necho 'a.cc:27:10: fatal error: b.h: No such file or directory'\nexit 1\n")
    pip.chmod(0o700)
    monkeypatch.setattr(setup.sys, "executable", str(pip))
    monkeypatch.setattr(setup.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(
        UsageError, match=r"ended with status 1; its output: (.*\.log)\n  a.cc:27:10: fatal error"
    ) as told:
        setup._build(tmp_path, "2.21.0")
    (log,) = tmp_path.glob("*.log")
    assert str(log) in str(told.value) and len(log.read_text().splitlines()) == 3001
    assert len(str(told.value).splitlines()) == 2
