"""Which operations the training steps of scripts consist of, as they travel: what admission is measured by.

    python -m tests.helpers.step_operations tests/helpers/step_operations.json

has `fdt check` look at the client's examples, the fidelity cases and the sweep's situations, traces what Keras 2 and 3 offer,
and writes down the operations of every program. Beside each operation stand its attributes that named a handle's type.

    python -m tests.helpers.step_operations --of OUT SCRIPT ARGS

does so for one script.
"""

import collections
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

_ROOT = Path(__file__).parents[2]
KEPT = Path(__file__).with_name("step_operations.json")
_LIMIT_S = 900.0
# TensorFlow's DataTypes of resources and variants, and of references to them.
_HANDLES = (20, 21, 120, 121)


class Operations:
    """Operations, how often each was seen, and which of its attributes named a handle's type."""

    def __init__(self, counts: Mapping[str, int] = {}, handles: Iterable[str] = ()) -> None:
        self.counts, self.handles = collections.Counter(counts), set(handles)

    def note(self, graph: Any) -> None:
        """Adds those of a GraphDef and its library, but for calls by a function's name."""
        library = {function.signature.name for function in graph.library.function}
        nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
        for node in nodes:
            if node.op in library:
                continue
            self.counts[node.op] += 1
            for name, value in node.attr.items():
                if name[:1] != "_" and not {value.type, *value.list.type}.isdisjoint(_HANDLES):
                    self.handles.add(f"{node.op}.{name}")

    def update(self, other: "Operations") -> None:
        self.counts.update(other.counts)
        self.handles |= other.handles

    def write(self, file: IO[str]) -> None:
        """Puts them in place of what a file holds."""
        file.seek(0)
        file.truncate()
        json.dump({"operations": dict(sorted(self.counts.items())), "handles": sorted(self.handles)}, file, indent=1)
        file.write("\n")
        file.flush()

    @classmethod
    def read(cls, path: Path) -> "Operations":
        found = json.loads(path.read_text())
        return cls(found["operations"], found["handles"])


def of_script(script: Path, *arguments: str, legacy: bool = False, limit_s: float = _LIMIT_S) -> Operations:
    """Returns those of the steps that `fdt check` finds in a script."""
    keras = "1" if legacy or script.name.startswith("keras2") else "0"
    paths = [str(_ROOT / "tests" / "sweep" / "stand_ins"), str(_ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "TF_USE_LEGACY_KERAS": keras,
        "PYTHONPATH": os.pathsep.join(paths),
        "MPLBACKEND": "Agg",
    }
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "operations.json"
        command = [sys.executable, "-m", "tests.helpers.step_operations", "--of", str(out), str(script), *arguments]
        try:
            subprocess.run(command, env=environment, cwd=folder, timeout=limit_s, capture_output=True, check=False)
        except subprocess.TimeoutExpired:
            print(f"{script.name}: not at its end after {limit_s:g} s", file=sys.stderr)
        return Operations.read(out) if out.exists() else Operations()


def _look(out: Path, *command: str) -> None:
    """Has `fdt check` look at a script in this process; writes down what it exports, program by program."""
    from tensorflow.core.protobuf import meta_graph_pb2

    from fdt.capture.step import tracing
    from fdt.cli import main as cli

    # Opened before `check` has what the script writes go into memory.
    found, export, file = Operations(), tracing.export, out.open("w")

    def noted(*args: Any, **kwargs: Any) -> Any:
        program, variables = export(*args, **kwargs)
        found.note(meta_graph_pb2.MetaGraphDef.FromString(program.step.meta_graph).graph_def)
        found.write(file)
        return program, variables

    tracing.export = noted
    sys.argv = ["fdt", "check", *command]
    cli.main()


def main() -> None:
    if sys.argv[1] == "--of":
        _look(Path(sys.argv[2]), *sys.argv[3:])
        return


if __name__ == "__main__":
    main()
