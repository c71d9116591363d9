"""`fdt setup` up to where a compiler begins; that takes minutes, and is part of `make install`."""

import argparse
import dataclasses
import re
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest

from fdt.base import horovod_record
from fdt.cli import setup
from fdt.cli.installation import horovod_build, horovod_source, installer
from fdt.cli.installation.horovod_build import Build
from fdt.errors import UsageError

_PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
BUILD = Build(
    patches="p", tensorflow="2.18.1", library="sha256=a", python="cp311", horovod="0.28.1", platform="linux_x86_64",
    compiler="g++ 12", flags="-O2", settings={"HOROVOD_WITH_GLOO": "1"},
)  # fmt: skip


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "fdt" / "wheels"


def options(**given: object) -> argparse.Namespace:
    return argparse.Namespace(**{"rebuild": False, "wheel": None, **given})


def test_all_that_is_installed_has_hashes() -> None:
    pinned = dict(re.findall(r"^([a-z]+)==(\S+)", installer.REQUIREMENTS.read_text(), re.MULTILINE))
    assert pinned.keys() == {*horovod_build.BUILD_NEEDS, "horovod"}
    assert pinned["horovod"] == horovod_build.VERSION
    assert int(pinned["cmake"].split(".")[0]) < 4
    locked = {re.split(r"[<>=;]", need)[0] for need in _PROJECT["dependency-groups"]["horovod"]}
    assert locked - {"tensorflow"} == set(horovod_build.REQUIRES), "`make install` has them from the lock"


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Build) if field.name != "settings"])
def test_whatever_differs_is_another_wheel(field: str) -> None:
    changed = dataclasses.replace(BUILD, **{field: "other"})
    assert changed.wheel.file_name != BUILD.wheel.file_name
    assert dataclasses.replace(BUILD).wheel.file_name == BUILD.wheel.file_name


def test_what_the_user_sets_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOROVOD_GPU_OPERATIONS", "NCCL")
    monkeypatch.setenv("HOROVOD_WITH_GLOO", "0")
    build = Build.here()
    environment = horovod_build.build_environment(build, tmp_path)
    assert (environment["HOROVOD_WITH_GLOO"], environment["HOROVOD_GPU_OPERATIONS"]) == ("0", "NCCL")
    assert (environment["HOROVOD_WITHOUT_PYTORCH"], environment["HOROVOD_WITHOUT_MXNET"]) == ("1", "1")
    monkeypatch.delenv("HOROVOD_GPU_OPERATIONS")
    assert Build.here().wheel.file_name != build.wheel.file_name


def test_a_wheel_is_kept_unless_others_may_have_written_it(cache: Path) -> None:
    assert horovod_build.kept(BUILD) is None
    cache.mkdir(parents=True)
    (cache / BUILD.wheel.file_name).write_bytes(b"wheel")
    assert horovod_build.kept(BUILD) == cache / BUILD.wheel.file_name
    (cache / BUILD.wheel.file_name).chmod(0o666)
    assert horovod_build.kept(BUILD) is None


def test_a_horovod_that_serves_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(horovod_record, "complaint", lambda: None)
    monkeypatch.setattr(setup, "_python", lambda code, *_: "without nccl")
    monkeypatch.setattr(installer, "install", lambda *_: pytest.fail("nothing is to be installed"))
    assert setup.setup(options()) == 0
    assert "Horovod 0.28.1, without nccl" in capsys.readouterr().out


def test_a_wheel_that_is_kept_is_installed_without_a_build(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cache.mkdir(parents=True)
    wheel = cache / BUILD.wheel.file_name
    wheel.write_bytes(b"wheel")
    installed: list[tuple[str, ...]] = []
    monkeypatch.setattr(horovod_record, "complaint", lambda: "Horovod is not installed")
    monkeypatch.setattr(setup.Build, "here", lambda: BUILD)
    monkeypatch.setattr(setup, "_python", lambda code, *_: "without nccl")
    monkeypatch.setattr(horovod_build, "make", lambda _: pytest.fail("it was built before"))
    monkeypatch.setattr(installer, "require", lambda: None)
    monkeypatch.setattr(installer, "install", lambda *arguments: installed.append(arguments))
    monkeypatch.setattr(installer, "is_installed", lambda name: name != "psutil")
    assert setup.setup(options()) == 0
    assert installed[0] == ("--no-deps", "--reinstall", str(wheel))
    assert "--require-hashes" in installed[1] and installed[1][-1].endswith("psutil.txt"), "what is there stays"
    assert "was built before" in capsys.readouterr().out


def test_what_is_missing_is_said_before_anything_is_compiled(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setattr(horovod_record, "complaint", lambda: "Horovod is not installed")
    monkeypatch.setattr(setup.Build, "here", lambda: BUILD)
    monkeypatch.setattr(setup, "_python", lambda code, *_: pytest.fail("nothing is to be compiled"))
    monkeypatch.setattr(installer.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(installer.shutil, "which", lambda name: None)
    with pytest.raises(UsageError, match="neither pip is installed"):
        setup.setup(options())
    monkeypatch.setattr(installer, "require", lambda: "/bin/uv")
    with pytest.raises(UsageError, match="make was not found"):
        setup.setup(options())


def test_without_a_compiler_it_is_said_how_to_do_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(
        UsageError, match=r"g\+\+ or CXX was not found.*apt-get install g\+\+ make.*fdt setup --wheel DIR"
    ):
        Build.here()


PATCH = """\
--- a/one.cc
+++ b/one.cc
@@ -2,3 +2,4 @@
 b
-c
+C
+CC
 d
@@ -6,1 +7,1 @@
-f
+F
--- a/folder/two.cc
+++ b/folder/two.cc
@@ -1,1 +1,1 @@
-x
+y
"""


def test_patches_are_applied_where_they_say(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "one.cc").write_text("a\nb\nc\nd\ne\nf\ng\n")
    (tmp_path / "folder" / "two.cc").write_text("x\n")
    horovod_source.apply(PATCH, tmp_path)
    assert (tmp_path / "one.cc").read_text() == "a\nb\nC\nCC\nd\ne\nF\ng\n"
    assert (tmp_path / "folder" / "two.cc").read_text() == "y\n"
    with pytest.raises(UsageError, match=r"one\.cc, line 3, is not what our patch expects: 'c'"):
        horovod_source.apply(PATCH, tmp_path)


def test_who_installs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(installer, "run", lambda command, environment=None: asked.append(list(command)))
    monkeypatch.setattr(installer.importlib.util, "find_spec", lambda name: object())
    installer.install("--reinstall", "a.whl")
    monkeypatch.setattr(installer.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(installer.shutil, "which", lambda name: "/bin/uv")
    installer.install("--reinstall", "a.whl")
    assert asked[0][:4] == [sys.executable, "-P", "-m", "pip"] and asked[0][-2:] == ["--force-reinstall", "a.whl"]
    assert asked[1][:3] == ["/bin/uv", "pip", "install"] and asked[1][-2:] == ["--reinstall", "a.whl"]
    monkeypatch.setattr(installer.shutil, "which", lambda name: None)
    with pytest.raises(UsageError, match="neither pip is installed"):
        installer.install("a.whl")


def test_what_fails_tells_its_errors_and_where_the_rest_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    installer.run(["/bin/sh", "-c", "echo 'a.cc:1: error: of a test'"])
    assert not list(tmp_path.iterdir()), "what went well is not kept"
    with pytest.raises(
        UsageError, match=r"ended with status 1; its output: (.*\.log)\n  a.cc:27:10: fatal error"
    ) as told:
        installer.run(["/bin/sh", "-c", "seq 3000; echo 'a.cc:27:10: fatal error: b.h: No such file'; exit 1"])
    (log,) = tmp_path.glob("*.log")
    assert str(log) in str(told.value) and len(log.read_text().splitlines()) == 3001
    assert len(str(told.value).splitlines()) == 2
