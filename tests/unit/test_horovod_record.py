"""Whether the Horovod that is installed serves: a package with a record, in a folder of its own."""

import dataclasses
import json
import sys
from pathlib import Path

import pytest

from fdt.base import horovod_record
from fdt.base.horovod_record import RECORD, Needs

NEEDS = Needs(patches="p", tensorflow="2.18.1", library="sha256=a", python="cp311")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "horovod"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise AssertionError('it is not to be imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    # Of a package that was imported Python knows the place.
    monkeypatch.delitem(sys.modules, "horovod", raising=False)
    monkeypatch.setattr(horovod_record, "needs", lambda: NEEDS)
    return folder


def test_a_build_for_what_is_here_serves(package: Path) -> None:
    (package / RECORD).write_text(json.dumps({**dataclasses.asdict(NEEDS), "compiler": "any"}))
    assert horovod_record.complaint() is None


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"tensorflow": "2.21.0"}, "built for TensorFlow 2.21.0, and 2.18.1 is installed"),
        ({"library": "sha256=b"}, "another build of TensorFlow"),
        ({"python": "cp312"}, "another Python"),
        ({"patches": "q"}, "another version of FDT"),
    ],
)
def test_any_other_build_does_not(changed: dict[str, str], said: str, package: Path) -> None:
    (package / RECORD).write_text(json.dumps({**dataclasses.asdict(NEEDS), **changed}))
    assert said in (horovod_record.complaint() or "")


@pytest.mark.parametrize("record", [None, "no JSON"])
def test_a_horovod_of_others_does_not(record: str | None, package: Path) -> None:
    if record is not None:
        (package / RECORD).write_text(record)
    assert "was not built by `fdt setup`" in (horovod_record.complaint() or "")


def test_without_tensorflow_nothing_serves(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (package / RECORD).write_text(json.dumps(dataclasses.asdict(NEEDS)))
    monkeypatch.setattr(horovod_record, "needs", lambda: None)
    assert horovod_record.complaint() == "no TensorFlow is installed"


def test_what_this_environment_needs_is_known() -> None:
    needs = horovod_record.needs()
    assert needs is not None and all(dataclasses.asdict(needs).values())
