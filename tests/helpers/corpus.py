"""Which operations the training steps of many scripts consist of.

    python -m tests.helpers.corpus tests/division/corpus.json

runs the client's examples, all cases of the fidelity tests and the hard steps as plain python does, and takes note of the
operations of every function that TensorFlow traces on the way.
"""

import collections
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_SCRIPTS = _ROOT / "tests" / "fidelity" / "scripts"
_LIMIT_S = 1800.0
_NOTE = """\
import atexit, collections, json, runpy, sys
out, sys.argv = sys.argv[1], sys.argv[2:]
sys.path[0] = sys.argv[0].rpartition("/")[0]
from tensorflow.python.framework import func_graph
count, original = collections.Counter(), func_graph.func_graph_from_py_func

def noted(*args, **kwargs):
    graph = original(*args, **kwargs)
    count.update(op.type for op in graph.get_operations())
    return graph

for name, module in list(sys.modules.items()):
    if getattr(module, "func_graph_from_py_func", None) is original:
        module.func_graph_from_py_func = noted
atexit.register(lambda: open(out, "w").write(json.dumps(count)))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def operations(script: Path, *arguments: str, legacy: bool = False) -> dict[str, int]:
    """Returns how often each operation occurs in the functions that a script has TensorFlow trace."""
    environment = {**os.environ, "TF_USE_LEGACY_KERAS": "1"} if legacy else dict(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "operations.json"
        command = [sys.executable, "-c", _NOTE, str(out), str(script), *arguments]
        subprocess.run(command, env=environment, cwd=folder, timeout=_LIMIT_S, stdout=subprocess.DEVNULL, check=False)
        found: dict[str, int] = json.loads(out.read_text())
        return found


def main() -> None:
    total: collections.Counter[str] = collections.Counter()
    out = Path(sys.argv[1])
    examples = sorted((_ROOT / "client_examples").glob("*.py"))
    with tempfile.TemporaryDirectory() as folder:
        for legacy in (False, True):
            total.update(operations(_SCRIPTS / "run_cases.py", "--out", folder, legacy=legacy))
        total.update(operations(_SCRIPTS / "hard_steps.py", "--out", folder))
    for example in examples:
        total.update(operations(example))
    out.write_text(json.dumps(dict(sorted(total.items())), indent=1) + "\n")


if __name__ == "__main__":
    main()
