"""Fetches Horovod's sources and applies our patches to them."""

import re
import tarfile
from collections.abc import Mapping
from pathlib import Path

from fdt.base import interpreter
from fdt.base.horovod_record import PATCHES
from fdt.cli.installation import installer
from fdt.errors import UsageError

# Parts of a unified diff: of a file, and of a file's lines from a number on.
_FILE = re.compile(r"^--- a/", re.MULTILINE)
_HUNK = re.compile(r"^@@ -(\d+).*\n", re.MULTILINE)


def fetch(folder: Path, environment: Mapping[str, str]) -> Path:
    """Downloads and unpacks Horovod's sources, patched.

    Args:
        folder: Where to.
        environment: An environment in which Python finds pip, and what Horovod's setup.py imports.

    Returns:
        The folder of the sources.
    """
    downloaded = folder / "download"
    arguments = [
        "--require-hashes",
        "--requirement",
        str(installer.hashed(folder, "horovod")),
        "--dest",
        str(downloaded),
    ]
    # pip asks the sources for their name and version, which takes no compiler.
    kinds = ["--no-deps", "--no-build-isolation", "--no-binary", "horovod"]
    installer.run(
        interpreter.of_module("pip", "download", "--disable-pip-version-check", *kinds, *arguments), environment
    )
    (archive,) = downloaded.glob("horovod-*.tar.gz")
    with tarfile.open(archive) as content:
        if hasattr(tarfile, "data_filter"):
            content.extraction_filter = tarfile.data_filter
        # Without it, as in older versions of Python 3.11: the archive's hash is known.
        content.extractall(folder)
    source = folder / archive.name.removesuffix(".tar.gz")
    for patch in sorted(PATCHES.glob("*.patch")):
        apply(patch.read_text(), source)
    return source


def apply(patch: str, folder: Path) -> None:
    """Applies a unified diff, whose lines have to be in the files exactly where it says.

    Args:
        patch: The diff; each file is named as "a/PATH" and "b/PATH".
        folder: The folder of its files.

    Raises:
        UsageError: A file has other lines.
    """
    for of_file in _FILE.split(patch)[1:]:
        name, _, hunks = of_file.partition("\n")
        path = folder / name
        lines, changed, at = path.read_text().split("\n"), [], 0
        parts = _HUNK.split(hunks)[1:]
        for start, hunk in zip(parts[::2], parts[1::2], strict=True):
            changed += lines[at : int(start) - 1]
            at = int(start) - 1
            for line in hunk.split("\n")[:-1]:
                sign, text = line[0], line[1:]
                if sign != "+":
                    if lines[at : at + 1] != [text]:
                        raise UsageError(f"{name}, line {at + 1}, is not what our patch expects: {text!r}")
                    at += 1
                if sign != "-":
                    changed.append(text)
        path.write_text("\n".join([*changed, *lines[at:]]))
