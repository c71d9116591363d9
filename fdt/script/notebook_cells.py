"""Turns a notebook's cells into a script that runs them from the first to the last."""

import ast
import json
import linecache
import re
import sys
import traceback
from typing import Any

# FDT's own magics, which `fdt run` replaces by `pass`.
_OURS = re.compile(r"^(\s*)%(load_ext\s+fdt|fdt)\b.*$", re.MULTILINE)


def source_of(location: str, content: bytes, namespace: dict[str, Any]) -> bytes:
    """Returns a notebook's code cells as one text, and makes tracebacks show its lines.

    Args:
        location: Path of the notebook.
        content: Content of that file, JSON.
        namespace: The script's namespace; gets `get_ipython` if a cell has magics.

    Raises:
        SyntaxError: The file is no notebook, or has magics while IPython is not installed.
    """
    try:
        cells = [cell for cell in json.loads(content)["cells"] if cell["cell_type"] == "code"]
        texts = [text if isinstance(text := cell["source"], str) else "".join(text) for cell in cells]
    except (ValueError, KeyError, TypeError) as error:
        raise SyntaxError(f"{location} is no notebook of nbformat 4: {error!r}") from None
    source = "\n\n".join(_python(_OURS.sub(r"\1pass", text), location, namespace) for text in texts) + "\n"
    # With None as time of change, linecache never compares the entry with the file, which holds JSON.
    linecache.cache[location] = (len(source), None, source.splitlines(keepends=True), location)
    if sys.excepthook is sys.__excepthook__:
        # Until Python 3.12 the interpreter's own hook reads lines from the file, not from linecache.
        sys.excepthook = traceback.print_exception
    return source.encode()


def _python(text: str, location: str, namespace: dict[str, Any]) -> str:
    """Returns a cell as Python, with IPython's own syntax replaced by calls of `get_ipython()`."""
    try:
        ast.parse(text)
        return text
    except SyntaxError:
        pass
    try:
        from IPython.core.inputtransformer2 import TransformerManager
    except ImportError:
        raise SyntaxError(f"{location} has magics or shell commands, which need IPython: pip install ipython") from None
    if "get_ipython" not in namespace:
        namespace["get_ipython"] = _shell(namespace).get_ipython
    # Leaves invalid syntax as it is, so that Python raises the error.
    return str(TransformerManager().transform_cell(text))


def _shell(namespace: dict[str, Any]) -> Any:
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    quiet = Config()
    quiet.HistoryManager.enabled = False
    return InteractiveShell.instance(config=quiet, user_module=sys.modules["__main__"], user_ns=namespace)
