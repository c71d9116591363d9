"""A script cannot tell `fdt run` from `python`: the probe prints the same under both.

Each way of running us is held against python: the script runner alone, the whole command with a stand-in for what
trains (no pool, so it is quick and shows what the command itself does), and `fdt run` as a person types it.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from fdt.base import interpreter
from tests.helpers.thorough import marks, some_of

_LIMIT_S = 180
_PROBE = Path(__file__).parents[1] / "helpers" / "probe.py"
_PYTHON = [sys.executable]

_ALONE = "import sys; from fdt.script import runner; sys.exit(runner.finish(runner.run(sys.argv[1], sys.argv[2:])))"
_STAND_IN = """
import contextlib, sys, types
from fdt.cli import main as cli, settings

class Session(contextlib.nullcontext):
    distributed, verification = True, None
    __enter__ = lambda self: self
    close = write_report = lambda self, status: None

sys.modules["fdt.client.session"] = types.SimpleNamespace(Session=Session)
sys.modules["fdt.capture"] = types.SimpleNamespace(hooks=lambda _, **__: contextlib.nullcontext())
sys.modules["fdt.capture.purpose"] = types.SimpleNamespace(Training=lambda session: None)
import fdt
fdt.capture = sys.modules["fdt.capture"]
settings.require_launchers = lambda modes: None
sys.exit(cli.main(["run", *sys.argv[1:]]))
"""

# How to run a script, by name: what stands between the interpreter's own options and the script.
_QUICK = {"alone": ["-c", _ALONE], "command": ["-c", _STAND_IN]}
# The command runs a script as the runner alone does.
_QUICK_WAYS = [pytest.param(way, id=name, marks=marks(name != "command")) for name, way in _QUICK.items()]
_WAYS = [
    *(pytest.param(way, id=name) for name, way in _QUICK.items()),
    pytest.param(["-m", "fdt", "run", "--workers", "1"], id="fdt run"),
    pytest.param(interpreter.for_script("fdt", "run", "--workers", "1")[1:], id="fdt.run"),
]

# What the probe may see differently, and why.
DIFFERENCES = {
    "orig_argv": "the command line of the process is ours",
    "stack": "below the script's frame stand those that run it",
    "modules": "what the pool's client needs has been imported",
    "threads": "the client's own threads (all of them daemons) and gRPC's",
    "descriptors": "the client's sockets",
    "meta_path": "the hook that waits for imports: of tensorflow and keras, and of what starts processes",
}
# Of a run without a client only these are left.
_DIFFERENCES_WITHOUT_CLIENT = {"orig_argv", "stack", "modules", "meta_path"}


def _environment(**more: str) -> dict[str, str]:
    """A small one, the same wherever the test runs: nothing of the person's own shows up in a failure."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LD_LIBRARY_PATH") if name in os.environ}
    return {**kept, "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1", **more}


def _run(
    way: Sequence[str],
    script: str | Path,
    *arguments: str,
    options: Sequence[str] = (),
    cwd: Path | None = None,
    stdin: str = "",
    **environment: str,
) -> tuple[int, str, str]:
    done = subprocess.run(
        [*_PYTHON, *options, *way, str(script), *arguments],
        cwd=cwd, env=_environment(**environment), input=stdin, capture_output=True, text=True, timeout=_LIMIT_S,
        check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def _ours(stderr: str) -> str:
    """Standard error without the lines that are announced as ours."""
    return "".join(line for line in stderr.splitlines(keepends=True) if not line.startswith("fdt: "))


def _same(way: Sequence[str], script: str | Path, *arguments: str, **how: object) -> tuple[int, str, str]:
    """Runs both ways, asserts that they print and end alike, returns what python did."""
    expected = _run([], script, *arguments, **how)  # type: ignore[arg-type]
    status, stdout, stderr = _run(way, script, *arguments, **how)  # type: ignore[arg-type]
    assert (status, stdout, _ours(stderr)) == expected
    return expected


@pytest.mark.parametrize("way", _WAYS)
@pytest.mark.parametrize(
    ("options", "environment"),
    [
        pytest.param((), {}, id="plain"),
        pytest.param(("-u", "-W", "error::ImportWarning", "-X", "dev"), {}, id="options"),
        pytest.param(("-P",), {"PYTHONWARNINGS": "always", "PYTHONUNBUFFERED": "1"}, id="safe_path"),
    ],
)
def test_probe_prints_the_same(
    way: Sequence[str], options: Sequence[str], environment: dict[str, str], tmp_path: Path
) -> None:
    script = tmp_path / "scripts" / "probe.py"
    script.parent.mkdir()
    shutil.copy(_PROBE, script)
    arguments = ("7", "--workers", "3", "--", "--mode=async", "-h", "")
    how = {"cwd": tmp_path, "stdin": "one\ntwo\n", "options": options, **environment}
    status, stdout, stderr = _run([], "scripts/probe.py", *arguments, **how)  # type: ignore[arg-type]
    our_status, our_stdout, our_stderr = _run(way, "scripts/probe.py", *arguments, **how)  # type: ignore[arg-type]

    assert (our_status, our_stdout.splitlines()[1:], _ours(our_stderr)) == (status, stdout.splitlines()[1:], stderr)
    assert status == 7
    seen, ours = json.loads(stdout.splitlines()[0]), json.loads(our_stdout.splitlines()[0])
    allowed = DIFFERENCES.keys() if "fdt" in way else _DIFFERENCES_WITHOUT_CLIENT
    assert {key: ours[key] for key in seen if key not in allowed} == {k: v for k, v in seen.items() if k not in allowed}
    assert set(seen["modules"]) <= set(ours["modules"])
    assert ours["stack"][0] == seen["stack"][0]


_ENDINGS = {
    "falls off": "print('x', end='')",
    "none": "raise SystemExit",
    "integer": "raise SystemExit(3)",
    "negative": "raise SystemExit(-1)",
    "too large": "raise SystemExit(2**70)",
    "above a byte": "raise SystemExit(256)",
    "true": "raise SystemExit(True)",
    "text": "print('x', end=''); raise SystemExit('good bye')",
    "tuple": "raise SystemExit(1, 2)",
    "exception": "def f():\n    1/0\nprint('x', end='')\nf()",
    "interrupt": "import atexit; atexit.register(print, 'end'); raise KeyboardInterrupt",
    "interrupt of its own": "class Mine(KeyboardInterrupt): pass\nraise Mine('x')",
    "signal": "import os, signal; os.kill(os.getpid(), signal.SIGINT)\nfor _ in range(10**9): pass",
    "base exception": "raise GeneratorExit('x')",
    "immediate": "import os; os._exit(9)",
    "killed": "import os; os.kill(os.getpid(), 15)\nfor _ in range(10**9): pass",
    "chained": "try:\n    {}['a']\nexcept KeyError as e:\n    raise ValueError('v') from e",
    "in context": "try:\n    import nothing_of_this_name\nexcept ImportError:\n    int('x')",
    "group": "try:\n    1/0\nexcept Exception as e:\n    raise ExceptionGroup('g', [e, ValueError(1)])",
    "import": "import nothing_of_this_name",
    "hook": "import sys\nsys.excepthook = lambda *a: print(a[:2], a[2].tb_lineno, a[2].tb_next, sys.exc_info())\n1/0",
    "hook and interrupt": "import sys, atexit\nh = lambda *a: print('hook', a[0])\nsys.excepthook = h\n"
    "atexit.register(lambda: print(sys.excepthook is h, repr(sys.last_value), sys.last_traceback.tb_lineno))\n"
    "raise KeyboardInterrupt('mine')",
    "hook that exits": "import sys\ndef hook(*_): sys.exit(9)\nsys.excepthook = hook\n1/0",
    "hook that fails": "import sys\ndef hook(*_): int('x')\nsys.excepthook = hook\n1/0",
    "hook deleted": "import sys\ndel sys.excepthook\n1/0",
    "atexit fails": "import atexit\natexit.register(int, 'x')",
    "stdout gone": "import sys\ndel sys.stdout\nsys.exit('x')",
    "stderr closed": "import sys\nsys.stderr.close()\nsys.exit('x')",
    "text that fails": "class T:\n    def __str__(self): 1/0\nraise SystemExit(T())",
    "stdout closed": "import sys\nsys.stdout.close()",
    "stderr gone": "import sys\nsys.stderr = None\nsys.exit('x')",
    "thread fails": "import threading\nt = threading.Thread(target=int, args='x', name='t')\nt.start(); t.join()",
    "warning": "import warnings\nwarnings.warn('w', DeprecationWarning)\nwarnings.warn('u')\nx = '\\d'",
    "future": "from __future__ import annotations\ndef f(x: y): pass\nprint(f.__annotations__)\n"
    "exec('def g(x: 1): pass')\nprint(g.__annotations__)",
    "no future": "def g(x: int): pass\nprint(g.__annotations__, g.__code__.co_flags)",
    "syntax": "x = (\n",
    "indentation": "if 1:\n\tx\n        y\n",
    "late": "import threading, time, atexit\natexit.register(lambda: print('file', '__file__' in globals()))\n"
    "def f(): threading.main_thread().join(60); print('alive', '__file__' in globals())\n"
    "threading.Thread(target=f).start()",
    "executor": "import concurrent.futures as c, atexit\nfrom threading import main_thread\np = c.ThreadPoolExecutor(1)\n"
    "p.submit(lambda: print(not main_thread().is_alive() or 1))\natexit.register(print, 'end')",
    "forked": "import os, sys\npid = os.fork()\nif pid:\n    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    "else:\n    sys.exit(4)",
    "debugger": "import pdb\npdb.set_trace()\nx = 1\n",
    "profiler": "import sys\nsys.settrace(lambda *a: None)\nprint(1)",
}


@pytest.mark.parametrize("way", _QUICK_WAYS)
@pytest.mark.parametrize("ending", _ENDINGS)
def test_ends_the_same(ending: str, way: Sequence[str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(_ENDINGS[ending])
    stdin = "n\nn\nn\nn\n" if ending == "debugger" else ""
    _same(way, "train.py", cwd=tmp_path, stdin=stdin)


def test_status_of_an_interrupt_is_the_signal(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise KeyboardInterrupt")
    assert _run(_QUICK["command"], "train.py", cwd=tmp_path)[0] == -signal.SIGINT


@pytest.mark.parametrize("way", _QUICK_WAYS)
@pytest.mark.parametrize(
    "source",
    [
        b"# coding: latin-1\nprint(ascii('\xe9'))\n1/0 # \xe9\n",
        b"\xef\xbb\xbfprint(1)\n",
        b"\xef\xbb\xbf# coding: latin-1\n",
        b"# coding: nothing\n",
        b"# coding: ascii\n# \xe9\n",
        b"# coding: utf_8\nx = '\xff'\n",
        b"# \xff\n",
        b"x = 1\ny = '\xff'\n",
        b"x = 1\ny = 'a\0b'\n",
        b"x = 1\r\n1/0\r\n",
        b"",
    ],
)
def test_reads_the_source_as_python_does(source: bytes, way: Sequence[str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_bytes(source)
    _same(way, "train.py", cwd=tmp_path)


_PLACES = """
import sys
print(sys.argv, sys.path[:2], __file__, __package__, repr(__spec__).split(" at 0x")[0], __cached__)
1/0
"""


@pytest.mark.parametrize("way", _QUICK_WAYS)
@pytest.mark.parametrize("options", [(), ("-P",), ("-I",)])
@pytest.mark.parametrize(
    "place",
    ["a/x.py", "./a/x.py", "a/../a//x.py", "link.py", "dir_link/x.py", "a/chain.py",
     "package", "package/", "./package", "train.zip", "x.pyc", "a b/ü.py", "missing.py", "empty", "a/x.py/y", "damaged.pyc"],
)  # fmt: skip
def test_starts_from_the_same_place(place: str, options: Sequence[str], way: Sequence[str], tmp_path: Path) -> None:
    for directory in ("a", "b", "package", "empty", "a b"):
        (tmp_path / directory).mkdir()
    for file in ("a/x.py", "b/y.py", "package/__main__.py", "a b/ü.py"):
        (tmp_path / file).write_text(_PLACES)
    (tmp_path / "link.py").symlink_to("a/x.py")
    (tmp_path / "dir_link").symlink_to("a")
    (tmp_path / "a" / "chain.py").symlink_to("../link.py")
    (tmp_path / "damaged.pyc").write_bytes(b"nothing of this kind")
    with zipfile.ZipFile(tmp_path / "train.zip", "w") as archive:
        archive.writestr("__main__.py", _PLACES)
    import py_compile

    py_compile.compile(str(tmp_path / "a/x.py"), str(tmp_path / "x.pyc"))
    _same(way, place, "1", "--workers", cwd=tmp_path, options=options)


def test_absolute_path(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(_PLACES)
    _same(_QUICK["command"], tmp_path / "train.py")


def test_reads_a_script_from_a_pipe(tmp_path: Path) -> None:
    command = f"{sys.executable} -c '{_ALONE}' <(echo 'print(__name__, 5)')"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "__main__ 5\n", "")


def test_console_script_and_module_look_the_same(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys; print(sys.argv, sys.path, sorted(globals()))")
    # The console script is a file in a directory of its own, which stands in sys.path[0] when we are called.
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "fdt").write_text(_STAND_IN)
    done = subprocess.run(
        [*_PYTHON, "bin/fdt", "train.py"], cwd=tmp_path, env=_environment(), capture_output=True, text=True,
        timeout=_LIMIT_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == _run([], "train.py", cwd=tmp_path)


@pytest.mark.parametrize(
    "ending",
    some_of(
        ["falls off", "text", "exception", "interrupt", "syntax", "chained", "hook", "forked"],
        ["exception", "interrupt", "hook", "forked"],
    ),
)
def test_fdt_run_ends_the_same(ending: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(_ENDINGS[ending])
    _same(["-m", "fdt", "run", "--workers", "1"], "train.py", cwd=tmp_path)


def test_no_library_that_reads_settings_is_imported_before_the_script(tmp_path: Path) -> None:
    """A script sets OMP_NUM_THREADS or TF_CPP_MIN_LOG_LEVEL and then imports: that must still come in time."""
    (tmp_path / "train.py").write_text("import sys; print(sorted({'numpy', 'tensorflow', 'keras'} & set(sys.modules)))")
    status, stdout, _ = _run(["-m", "fdt", "run", "--workers", "1"], "train.py", cwd=tmp_path)
    assert (status, stdout) == (0, "[]\n")


_INTERRUPTED = "import atexit\natexit.register(print, 'end')\nprint('up', flush=True)\nwhile True: pass\n"


def _interrupt(way: Sequence[str], directory: Path) -> tuple[int, str, str]:
    """Runs a script that never ends, and sends SIGINT to it alone once it is up."""
    command = [*_PYTHON, *way, "train.py"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=directory, env=_environment(), stdout=pipe, stderr=pipe, text=True
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            up = process.stdout.readline()
            process.send_signal(signal.SIGINT)
            stdout, stderr = process.communicate(timeout=_LIMIT_S)
        finally:
            process.kill()
    # Which of the two last lines it was in is chance.
    shown = [line for line in _ours(stderr).splitlines() if not line.startswith("    ")]
    return process.returncode, up + stdout, re.sub(r"line [34]", "line 3 or 4", "\n".join(shown))


@pytest.mark.parametrize("way", _WAYS)
def test_interrupted_from_outside(way: Sequence[str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(_INTERRUPTED)
    expected = _interrupt([], tmp_path)
    assert expected[0] == -signal.SIGINT
    assert _interrupt(way, tmp_path) == expected
