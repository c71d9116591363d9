"""The operations that a TensorFlow has, asked of it in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

# What an attribute may hold besides numbers, types and shapes.
JUDGED = {"string", "list(string)", "func", "list(func)", "tensor", "list(tensor)"}
# TensorFlow's DataTypes of resources and variants.
_HANDLES = (20, 21)
_LIMIT_S = 120
_ASK = """
import contextlib, json
import tensorflow
with contextlib.suppress(ImportError):
    import horovod.tensorflow
from tensorflow.core.framework import op_def_pb2
from tensorflow.python.client import pywrap_tf_session as session
ops = op_def_pb2.OpList.FromString(session.TF_GetBuffer(session.TF_GetAllOpList()))
def default(a): return a.default_value.type or a.default_value.s.decode("latin-1")
print(json.dumps({op.name: {a.name: [a.type, default(a)] for a in op.attr} for op in ops.op}))
"""


def registry(python: str | Path = sys.executable) -> dict[str, dict[str, tuple[str, Any]]]:
    """Returns each operation's attributes, with their type and default text or type; Horovod's where it is installed."""
    run = subprocess.run([python, "-c", _ASK], capture_output=True, text=True, timeout=_LIMIT_S, check=True)
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found


def unjudged(found: dict[str, dict[str, tuple[str, Any]]]) -> list[str]:
    """Returns what the list of `fdt.program.operations` does not say of its operations as a registry has them."""
    from fdt.program.operations import FUNCTION, OPERATIONS, TENSOR

    wrong = []
    for op in found.keys() & OPERATIONS.keys():
        for name, (kind, default) in found[op].items():
            rule = OPERATIONS[op].get(name)
            if kind == "type" and default in _HANDLES:
                wrong.append(f"{op}.{name}: a handle by default")
            elif (rule is not None) != (kind in JUDGED):
                wrong.append(f"{op}.{name}: a {kind}, and the rule is {rule}")
            elif rule is not None and ("func" in kind, "tensor" in kind) != (rule is FUNCTION, rule is TENSOR):
                wrong.append(f"{op}.{name}: a {kind}, and it may hold {rule.says}")
            elif rule is not None and rule.text is not None and not rule.text(default.encode("latin-1")):
                wrong.append(f"{op}.{name}: its default {default!r} is refused")
    return wrong
