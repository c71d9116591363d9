"""Turns a notebook's cells into the script that they are when they run from the first to the last."""

import ast
import json
import linecache
import re
import sys
import traceback
from typing import Any

# `fdt run` does already what these ask for.
_OURS = re.compile(r"^(\s*)%(load_ext\s+fdt|fdt)\b.*$", re.MULTILINE)


def source_of(location: str, content: bytes, namespace: dict[str, Any]) -> bytes:
    """Returns a notebook's code cells as one text, which tracebacks show too.

    Args:
        location: Of the notebook.
        content: Of that file, JSON.
        namespace: The script's; it gets `get_ipython` if a cell has magics.

    Raises:
        SyntaxError: It is no notebook, or has magics and there is no IPython.
    """
    try:
        cells = [cell for cell in json.loads(content)["cells"] if cell["cell_type"] == "code"]
        texts = [text if isinstance(text := cell["source"], str) else "".join(text) for cell in cells]
    except (ValueError, KeyError, TypeError) as error:
        raise SyntaxError(f"{location} is no notebook of nbformat 4: {error!r}") from None
    source = "\n\n".join(_python(_OURS.sub(r"\1pass", text), location, namespace) for text in texts) + "\n"
    # No time of change: the entry is then never compared with the file, which holds JSON.
    linecache.cache[location] = (len(source), None, source.splitlines(keepends=True), location)
    if sys.excepthook is sys.__excepthook__:
        # The interpreter's own reads lines from the file until Python 3.12.
        sys.excepthook = traceback.print_exception
    return source.encode()


def _python(text: str, location: str, namespace: dict[str, Any]) -> str:
    """Returns a cell as Python, in which IPython's own syntax has become calls of `get_ipython()`."""
    try:
        ast.parse(text)
        return text
    except SyntaxError:
        pass
    try:
        from IPython.core.inputtransformer2 import TransformerManager
    except ImportError:
        raise SyntaxError(f"{location} has magics or commands of a shell: install ipython to have them run") from None
    if "get_ipython" not in namespace:
        namespace["get_ipython"] = _shell(namespace).get_ipython
    # A cell that is wrong stays as it is, for Python to say so.
    return str(TransformerManager().transform_cell(text))


def _shell(namespace: dict[str, Any]) -> Any:
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    quiet = Config()
    quiet.HistoryManager.enabled = False
    return InteractiveShell.instance(config=quiet, user_module=sys.modules["__main__"], user_ns=namespace)
