"""Names of TensorFlow and Keras that are not public: all that are used are asked for, and one that is gone is said."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import tensorflow as tf

from fdt.capture import private_names
from fdt.errors import UnsupportedError

_FDT = Path(private_names.__file__).parents[1]
_PACKAGES = ("capture", "program", "division")
_PRIVATE = ("tensorflow.python", "keras.src", "tf_keras.src")
_LISTED = {**private_names.TENSORFLOW, **private_names.KERAS, **private_names.KERAS_2}


def _imports() -> Iterator[tuple[str, str]]:
    """Yields module and name of each import of a private module's attributes; names of modules are "" within themselves."""
    for package in _PACKAGES:
        for path in (_FDT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_PRIVATE):
                    for alias in node.names:
                        yield str(node.module), alias.name


def test_every_private_name_that_is_imported_is_asked_for() -> None:
    found = set(_imports())
    assert len(found) > 60, "this test sees the imports"
    unlisted = [
        f"{module}.{name}"
        for module, name in found
        if f"{module}.{name}" not in _LISTED and name not in _LISTED.get(module, "").split()
    ]
    assert unlisted == []


@pytest.mark.parametrize("names", [private_names.TENSORFLOW, private_names.KERAS, private_names.KERAS_2])
def test_all_of_them_are_here(names: dict[str, str]) -> None:
    assert list(private_names.missing(names)) == []


def test_what_is_gone_is_said_with_the_version() -> None:
    names = {"tensorflow.python.no_such": "any", "tensorflow.python.ops.variables": "Variable _gone Variable.gone_too"}
    private_names.require("tensorflow", {"tensorflow.python.ops.variables": "Variable Variable.assign"})
    with pytest.raises(UnsupportedError) as told:
        private_names.require("tensorflow", names)
    said = str(told.value)
    assert f"tensorflow {tf.__version__} has no tensorflow.python.no_such, " in said
    assert "variables._gone, tensorflow.python.ops.variables.Variable.gone_too, which fdt needs" in said
    assert "tried with tensorflow 2.16 to" in said
