"""What others may rely on, besides the options of the commands (frozen in `test_cli.py`): changing it is a decision."""

import importlib.metadata
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import fdt

_PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
_LIMIT_S = 60


def test_what_the_package_offers_is_frozen() -> None:
    assert fdt.__all__ == ["Attached", "Result", "__version__", "attach", "errors", "run"]
    # In a python of its own: what other tests import becomes an attribute of the package.
    code = "import json, types, fdt; print(json.dumps([n for n, v in vars(fdt).items() if isinstance(v, types.FunctionType)]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=_LIMIT_S, check=True)
    assert json.loads(done.stdout) == ["__getattr__"], "all else is imported when it is asked for"


def test_one_version() -> None:
    assert fdt.__version__ == _PROJECT["version"] == importlib.metadata.version("fdt")


def test_commands_are_frozen() -> None:
    assert set(_PROJECT["scripts"]) == {"fdt", "hfdt", "nfdt"}


def test_modes_have_runtimes_under_frozen_names() -> None:
    assert set(_PROJECT["entry-points"]["fdt.launchers"]) <= {"sync", "async"}
