"""Installs packages with pip or uv, and runs other commands that print much: what they print is shown only if they fail.

Files from an index are installed by their hashes (`requirements.txt`): an index, or another server in its place, cannot hand
out others.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from fdt.base import interpreter
from fdt.errors import UsageError

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
# A requirement and the hashes of its files, which follow on indented lines.
_REQUIREMENT = re.compile(r"^([a-z]+)==.*(?:\n +--hash=.*)+", re.MULTILINE)
_LIMIT_S = 3600.0
# Error lines in the output of compilers, CMake and pip.
_ERROR = re.compile(r"\b(fatal )?error:|^ERROR|^CMake Error", re.IGNORECASE)
_SHOWN_ERRORS = 5


def hashed(folder: Path, *names: str) -> Path:
    """Writes a file of requirements with these names, whose hashes pip and uv check; returns its path."""
    known = {match[1]: match[0] for match in _REQUIREMENT.finditer(REQUIREMENTS.read_text())}
    path = folder / f"{names[0]}.txt"
    path.write_text("\n".join(known[name] for name in names) + "\n")
    return path


def is_installed(name: str) -> bool:
    """Whether this environment has a package."""
    try:
        return bool(version(name))
    except PackageNotFoundError:
        return False


def install(*arguments: str) -> None:
    """Runs `pip install`, or `uv pip install` if the environment has no pip: both have to know these arguments.

    Raises:
        UsageError: It fails, or there is neither of them.
    """
    if (uv := require()) is not None:
        run([uv, "pip", "install", "--quiet", f"--python={sys.executable}", *arguments])
    else:
        translated = ["--force-reinstall" if argument == "--reinstall" else argument for argument in arguments]
        run(interpreter.of_module("pip", "install", "--quiet", "--disable-pip-version-check", *translated))


def require() -> str | None:
    """Returns uv's path where packages are installed with it, None where pip is in this environment.

    Raises:
        UsageError: There is neither of them.
    """
    if importlib.util.find_spec("pip") is not None:
        return None
    if (uv := shutil.which("uv")) is None:
        raise UsageError(f"neither pip is installed beside {sys.executable} nor uv is in PATH; one of them is needed")
    return uv


def run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    """Runs a command and waits until it ends.

    Not in the working directory: uv would use the index that a `pyproject.toml` there names.

    Raises:
        UsageError: It fails, or takes longer than an hour.
    """
    # A failed build prints thousands of lines.
    with tempfile.NamedTemporaryFile("w+", prefix="fdt-setup-", suffix=".log", errors="replace", delete=False) as log:
        try:
            done = subprocess.run(
                command, env=environment, cwd="/", stdout=log, stderr=subprocess.STDOUT, timeout=_LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise UsageError(f"{' '.join(command)} did not end within {_LIMIT_S:.0f} s; see {log.name}") from error
        log.seek(0)
        found = [line.strip() for line in log if _ERROR.search(line)][:_SHOWN_ERRORS]
    if done.returncode:
        shown = "".join(f"\n  {line}" for line in found)
        raise UsageError(f"{' '.join(command)} ended with status {done.returncode}; its output: {log.name}{shown}")
    os.unlink(log.name)
