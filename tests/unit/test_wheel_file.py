"""A wheel that we write is one: pip's own checks, and what it says of itself."""

import base64
import hashlib
import zipfile
from email.parser import Parser
from pathlib import Path

from fdt.cli.installation.wheel_file import Wheel

WHEEL = Wheel("some_package", "1.2", "1abc", "py3-none-linux_x86_64", ("one", "two"), ("some = some_package:main",))
FILES = {"some_package/__init__.py": b"x = 1\n", "some_package/lib.so": b"\x7fELF"}


def test_its_name_says_what_it_is_for() -> None:
    assert WHEEL.file_name == "some_package-1.2-1abc-py3-none-linux_x86_64.whl"


def test_it_holds_its_files_their_hashes_and_its_needs(tmp_path: Path) -> None:
    WHEEL.write(tmp_path / WHEEL.file_name, FILES)
    with zipfile.ZipFile(tmp_path / WHEEL.file_name) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
        assert archive.getinfo("some_package/lib.so").external_attr >> 16 & 0o111
    assert FILES.items() <= contents.items()
    info = "some_package-1.2.dist-info"
    metadata = Parser().parsestr(contents[f"{info}/METADATA"].decode())
    assert (metadata["Name"], metadata["Version"], metadata.get_all("Requires-Dist")) == (
        "some_package",
        "1.2",
        ["one", "two"],
    )
    assert Parser().parsestr(contents[f"{info}/WHEEL"].decode())["Tag"] == "py3-none-linux_x86_64"
    record = [line.split(",") for line in contents[f"{info}/RECORD"].decode().splitlines()]
    assert {name for name, _, _ in record} == set(contents)
    for name, digest, size in record:
        if name != f"{info}/RECORD":
            of_content = base64.urlsafe_b64encode(hashlib.sha256(contents[name]).digest()).decode().rstrip("=")
            assert (digest, int(size)) == (f"sha256={of_content}", len(contents[name]))


def test_equal_contents_are_an_equal_file(tmp_path: Path) -> None:
    for name in ("a.whl", "b.whl"):
        WHEEL.write(tmp_path / name, FILES)
    assert (tmp_path / "a.whl").read_bytes() == (tmp_path / "b.whl").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.whl", "b.whl"]
