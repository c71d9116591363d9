"""Scripts in forks: what a new process would show, and nothing of TensorFlow begun before."""

from pathlib import Path

import pytest

from tests.helpers import warm
from tests.helpers.processes import Finished
from tests.helpers.test_processes import PARENT, child_is_gone


def ran(directory: Path, text: str, *arguments: str, limit_s: float = 60.0, **env: str) -> Finished:
    script = directory / "script.py"
    script.write_text(text)
    return warm.run_python(script, *arguments, limit_s=limit_s, cwd=directory, **env)


def test_status_streams_and_place_are_those_of_a_process(tmp_path: Path) -> None:
    text = "import atexit, os, sys\natexit.register(print, 'end')\nprint('err', file=sys.stderr)\n"
    text += "print(sys.argv[1:], __name__, os.getcwd(), os.environ['X'])\nsys.exit(3)\n"
    finished = ran(tmp_path, text, "a", X="y")
    assert finished.stdout.splitlines() == [f"['a'] __main__ {tmp_path} y", "end"]
    assert finished.stderr.splitlines()[-1] == "err"
    assert finished.expect(3)
    with pytest.raises(AssertionError, match=r"expected exit status 0[\s\S]*ZeroDivisionError"):
        ran(tmp_path, "1 / 0\n").expect(0)


def test_the_command_too(tmp_path: Path) -> None:
    assert "can't open file" in warm.fdt("run", "absent.py", limit_s=60.0, cwd=tmp_path).expect(2).stderr


def test_the_limit_ends_the_whole_group(tmp_path: Path) -> None:
    finished = ran(tmp_path, PARENT + "threading.Event().wait()", limit_s=5.0)
    assert finished.status is None and child_is_gone(finished.stdout)


def test_tensorflow_is_imported_and_not_begun(tmp_path: Path) -> None:
    """Its threads would not be there in a fork."""
    text = "import sys\nprint('keras' in sys.modules)\nfrom tensorflow.python.eager import context\n"
    assert ran(tmp_path, text + "print(context.context()._initialized)\n").expect(0).stdout == "True\nFalse\n"
