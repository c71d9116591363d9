"""Every process that we start is here: those that read what strangers send have a worker's walls, or a reason why not."""

import ast
import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import fdt
from fdt.base import interpreter
from fdt.pool.examiner import Examiner
from fdt.transport.blob_store import BlobStore
from fdt.v1 import program_pb2
from fdt.worker.gateway import Gateway
from tests.faults.test_sandbox import needs_landlock
from tests.helpers.blobs import write

_WALLED = "walls"
CHILDREN = {
    "fdt.pool.examiner": _WALLED,
    "fdt.worker.tunnel": _WALLED,
    # Its workers have them: `test_forkserver.py`, `tests/faults/test_sandbox.py`.
    "fdt.worker.forkserver": "it passes on orders of its pool, and bytes of logs that it does not read",
    "fdt.worker.sandbox": "it tries the walls",
    "fdt.pool.server": "it is the control process itself, in a process of its own",
    "fdt.pool.scheduling.ray_driver": "Ray starts processes; whoever is let into its cluster runs anything there anyway",
    "fdt": "it runs what its user gave it: a script, or the start of a host",
    "fdt.script.file_overlay": "it runs what its user gave it, a script",
    "fdt.cli.detached": "it runs what its user gave it, a script",
    "pip": "it installs what its user asked for, by its hash",
}


def _started() -> Iterator[str]:
    """Yields the module of each interpreter that a module of ours starts."""
    for path in Path(fdt.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                "interpreter.of_module",
                "interpreter.for_script",
            ):
                # Without a name: a process of the same command as this one.
                yield from (each.value for each in node.args[:1] if isinstance(each, ast.Constant))


def test_each_has_walls_or_a_reason() -> None:
    assert set(_started()) == set(CHILDREN)


@contextlib.contextmanager
def _examiner(folder: Path) -> Iterator[int]:
    looking, store = Examiner(), BlobStore(folder)
    looking.examine(store, write(store, program_pb2.StepProgram().SerializeToString()))
    assert looking._process is not None
    yield looking._process.pid
    looking.close()


@contextlib.contextmanager
def _tunnel(folder: Path) -> Iterator[int]:
    gateway = Gateway.start()
    gateway.seal()
    yield gateway._process.pid
    gateway._orders.close()
    gateway._blanks.close()
    gateway._process.wait()


_STARTS: dict[str, Callable[[Path], contextlib.AbstractContextManager[int]]] = {
    "fdt.pool.examiner": _examiner,
    "fdt.worker.tunnel": _tunnel,
}


@needs_landlock
@pytest.mark.parametrize("module", [module for module, why in CHILDREN.items() if why == _WALLED])
def test_walls_stand_before_anything_is_read(module: str, tmp_path: Path) -> None:
    with _STARTS[module](tmp_path) as pid:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        assert psutil.Process(pid).cwd() == "/"
    found = dict(line.split(":\t") for line in lines if line.startswith(("NoNewPrivs", "Seccomp:", "Cap")))
    assert (found["NoNewPrivs"], found["Seccomp"]) == ("1", "2")
    assert {int(found[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}


@needs_landlock
def test_behind_these_walls_no_file_is_opened(tmp_path: Path) -> None:
    """Landlock is not shown in `/proc`, so another process raises the same walls, and does what a fallen one would."""
    (tmp_path / "secret").write_text("secret")
    code = (
        "import sys\nfrom fdt.worker.sandbox import Reach, raise_walls\nraised = raise_walls(Reach())\n"
        "for mode in 'rw':\n"
        "    try:\n        open(sys.argv[1], mode)\n    except PermissionError:\n        print(mode, 'refused')\n"
        "print(raised.missing)"
    )
    command = [*interpreter.of_code(code), str(tmp_path / "secret")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split("\n")[:3] == ["r refused", "w refused", "()"]
