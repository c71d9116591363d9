"""Which operations the training steps of scripts consist of, as they travel: what admission's list is measured by.

    python -m tests.helpers.step_operations [SCRIPT...]

has `fdt check` look at the client's examples, the hard steps, the fidelity cases and the sweep's situations (or these scripts),
each in a fork of a process that has imported TensorFlow, and adds the operations of every program to `step_operations.json`,
with the attributes that named a handle's type.
"""

import importlib
import json
import os
import select
import signal
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any

_ROOT = Path(__file__).parents[2]
KEPT = Path(__file__).with_name("step_operations.json")
_LIMIT_S = 900.0
# TensorFlow's DataTypes of resources and variants, and of references to them.
_HANDLES = (20, 21, 120, 121)


class Operations:
    """Operations, and which of their attributes named a handle's type."""

    def __init__(self, names: Iterable[str] = (), handles: Iterable[str] = ()) -> None:
        self.names, self.handles = set(names), set(handles)

    def note(self, graph: Any) -> None:
        """Adds those of a GraphDef and its library, but for calls by a function's name."""
        library = {function.signature.name for function in graph.library.function}
        nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
        for node in nodes:
            if node.op in library:
                continue
            self.names.add(node.op)
            for name, value in node.attr.items():
                if name[:1] != "_" and not {value.type, *value.list.type}.isdisjoint(_HANDLES):
                    self.handles.add(f"{node.op}.{name}")

    def update(self, other: "Operations") -> None:
        self.names |= other.names
        self.handles |= other.handles

    def write(self, file: IO[str]) -> None:
        """Puts them in place of what a file holds."""
        file.seek(0)
        file.truncate()
        json.dump({"operations": sorted(self.names), "handles": sorted(self.handles)}, file, indent=1)
        file.write("\n")
        file.flush()

    @classmethod
    def read(cls, path: Path) -> "Operations":
        found = json.loads(path.read_text())
        return cls(found["operations"], found["handles"])


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


def _in_a_fork(folder: Path, command: Sequence[str]) -> Operations:
    out = folder / "operations.json"
    child = os.fork()
    if child == 0:
        os.setsid()
        os.chdir(folder)
        silence = os.open(os.devnull, os.O_RDWR)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        try:
            _look(out, *command)
        finally:
            os._exit(0)
    ended = select.poll()
    ended.register(os.pidfd_open(child), select.POLLIN)
    if not ended.poll(1000 * _LIMIT_S):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return Operations.read(out) if out.exists() and out.stat().st_size else Operations()


def main() -> None:
    fidelity = _ROOT / "tests" / "fidelity" / "scripts"
    scripts = [*(_ROOT / "client_examples").glob("*.py"), *(_ROOT / "tests" / "sweep" / "situations").glob("*.py")]
    commands = [[str(script)] for script in sorted(scripts)]
    commands += [[str(fidelity / name), "--out", "out"] for name in ("hard_steps.py", "run_cases.py")]
    # Keras 2 is another run: TF_USE_LEGACY_KERAS is read as TensorFlow is imported.
    is_legacy = os.environ.get("TF_USE_LEGACY_KERAS") == "1"
    commands = [[name] for name in sys.argv[1:]] or [
        c for c in commands if Path(c[0]).name.startswith("keras2") == is_legacy
    ]
    os.environ["MPLBACKEND"] = "Agg"
    sys.path.insert(0, str(_ROOT / "tests" / "sweep" / "stand_ins"))
    for module in ("tensorflow", "fdt.capture", "fdt.cli.main"):
        importlib.import_module(module)
    total = Operations.read(KEPT) if KEPT.exists() else Operations()
    for command in commands:
        with tempfile.TemporaryDirectory() as folder:
            found = _in_a_fork(Path(folder), command)
        print(f"{Path(command[0]).name}: {len(found.names)} operations", flush=True)
        total.update(found)
    with KEPT.open("w") as file:
        total.write(file)


if __name__ == "__main__":
    main()
