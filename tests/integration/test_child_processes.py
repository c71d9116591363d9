"""Which of the processes that a script starts are told of, in a /proc of the test's own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fdt.script import child_processes
from fdt.script.child_processes import Children
from tests.helpers.waiting import wait_until

_MAPS = "7f0-7f1 r-xp 0 00:0 1 /site-packages/tensorflow/libtensorflow_framework.so.2\n"


class Proc:
    """A folder like /proc."""

    def __init__(self, root: Path):
        self._root = root
        self.add(os.getpid(), "python -m fdt run train.py", _MAPS)

    def add(self, process: int, command: str, maps: str = "", parent: int | None = None) -> None:
        folder = self._root / str(process)
        (folder / "task" / str(process)).mkdir(parents=True)
        (folder / "cmdline").write_bytes(command.replace(" ", "\0").encode())
        (folder / "maps").write_text(maps)
        (folder / "task" / str(process) / "children").write_text("")
        if parent is not None:
            with (self._root / str(parent) / "task" / str(parent) / "children").open("a") as listed:
                listed.write(f"{process} ")


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Proc:
    monkeypatch.setattr(child_processes, "_PROC", str(tmp_path))
    return Proc(tmp_path)


def test_processes_that_have_loaded_tensorflow_are_told_of(proc: Proc) -> None:
    said: list[str] = []
    watch = Children(said.append, 0.01)
    proc.add(2, "python -c spawn_main(5)", parent=os.getpid())
    proc.add(3, "python other.py", _MAPS, parent=2)
    proc.add(4, "python third.py", _MAPS, parent=os.getpid())
    with watch.watched():
        watch.start()
        wait_until(lambda: watch.num_found == 2, lambda: str(said), 10)
    assert len(said) == 2 and "process that has loaded TensorFlow" in said[0]
    assert said[1] == "2 processes that the script started had loaded TensorFlow"


def test_a_process_that_goes_on_to_load_it_is_told_of_once(proc: Proc, tmp_path: Path) -> None:
    said: list[str] = []
    proc.add(2, "python other.py", parent=os.getpid())
    watch = Children(said.append, 0.01)
    with watch.watched():
        watch.start()
        (tmp_path / "2" / "maps").write_text(_MAPS)
        wait_until(lambda: said, lambda: "nothing said", 10)
        (tmp_path / "2" / "maps").write_text(_MAPS * 2)
    assert len(said) == 1 and "(2: python other.py)" in said[0]


@pytest.mark.parametrize(
    "starts",
    [
        "import subprocess; subprocess.run(['true'])",
        "import os; os.system('true')",
        "import os; os.fork() or os._exit(0)",
        "import multiprocessing; multiprocessing.get_context('spawn').Process(target=len, args=('',)).start()",
        "import concurrent.futures, multiprocessing",
    ],
)
def test_a_thread_looks_from_the_first_process_on(starts: str) -> None:
    program = (
        "import threading\nfrom fdt.script.child_processes import Children\nwith Children(print).watched():\n"
        f"  before = threading.active_count(); {starts}\n  print(before, [t.name for t in threading.enumerate()][1:])"
    )
    names = [] if "futures" in starts else ["fdt-children"]
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == f"1 {names}\n"


@pytest.mark.parametrize(
    "command", ["python -m fdt run train.py", "python -P -m fdt.worker.forkserver", "/usr/bin/fdt run other.py"]
)
def test_forked_ones_and_ours_are_not_told_of(command: str, proc: Proc) -> None:
    said: list[str] = []
    watch = Children(said.append, 0.01)
    proc.add(2, command, _MAPS, parent=os.getpid())
    proc.add(3, "python other.py", _MAPS, parent=os.getpid())
    with watch.watched():
        watch.start()
        wait_until(lambda: watch.num_found > 0, lambda: str(said), 10)
    assert watch.num_found == 1 and "other.py" in said[0]
