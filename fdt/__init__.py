"""Trains an unmodified TensorFlow script on several workers: the command `fdt`, and the same from Python.

    import fdt

    result = fdt.run("train.py", "--epochs", "10", mode="sync", workers=4)     # a script, in a process of its own
    print(result.report["fits"][0]["step_seconds"])

    with fdt.attach(mode="async", workers=2):                                   # whatever trains in this process
        model.fit(x, y)

In a notebook: `%load_ext fdt`, then `%fdt attach --workers 2` and `%fdt detach`. What can go wrong is in `fdt.errors`.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Attached", "Result", "__version__", "attach", "errors", "run"]

if TYPE_CHECKING:
    from fdt import errors
    from fdt.cli.api import Attached, Result, attach, run

# Imported when they are asked for: a script that runs under the command meets none of it.
_PLACES = {
    "Attached": "fdt.cli.api", "Result": "fdt.cli.api", "attach": "fdt.cli.api", "run": "fdt.cli.api",
    "load_ipython_extension": "fdt.cli.notebook", "unload_ipython_extension": "fdt.cli.notebook",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "errors":
        return importlib.import_module("fdt.errors")
    if name in _PLACES:
        return getattr(importlib.import_module(_PLACES[name]), name)
    raise AttributeError(f"module 'fdt' has no attribute {name!r}")
