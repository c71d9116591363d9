"""The script runner's parts, in this process. What a script sees is held against python in tests/fidelity."""

import functools
import itertools
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from fdt.errors import UnsupportedError, UsageError
from fdt.script import runner


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Puts back what a run leaves in the interpreter."""
    main, argv, path, hook = sys.modules["__main__"], sys.argv, list(sys.path), sys.excepthook
    last = {name: getattr(sys, name) for name in ("last_type", "last_value", "last_traceback") if hasattr(sys, name)}
    # What other tests import may have put its own in its place.
    sys.excepthook = sys.__excepthook__
    yield
    sys.modules["__main__"], sys.argv, sys.path[:], sys.excepthook = main, argv, path, hook
    for name in ("last_type", "last_value", "last_traceback"):
        if name in last:
            setattr(sys, name, last[name])
        elif hasattr(sys, name):
            delattr(sys, name)


def _write(directory: Path, source: str) -> str:
    path = directory / "train.py"
    path.write_text(source)
    return str(path)


def test_main_stays_installed(tmp_path: Path) -> None:
    path = _write(tmp_path, "import sys\nx = sys.modules['__main__'].__dict__ is globals()")
    assert runner.run(path, ["a", "--b"]) == 0
    assert sys.modules["__main__"].x is True
    assert sys.argv == [path, "a", "--b"]
    assert sys.path[0] == str(tmp_path)


def test_a_module_sees_what_python_shows_it(tmp_path: Path) -> None:
    """Beside python itself: the same lines."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    lines = "import sys\nfrom . import __name__ as above\n"
    lines += "print(sys.argv, sys.path[0], __name__, __spec__.name, __package__, above)\n"
    (tmp_path / "package" / "train.py").write_text(lines + "sys.exit(3)\n")
    ways = (
        ["-m"],
        ["-c", "import sys; from fdt.script import runner; sys.exit(runner.run('package.train', sys.argv[1:], True))"],
    )
    plain, ours = (
        subprocess.run(
            [sys.executable, *way, *(["package.train"] if way == ["-m"] else []), "a", "--b"],
            cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60,
        )
        for way in ways
    )  # fmt: skip
    assert (plain.returncode, plain.stdout, plain.stderr) == (ours.returncode, ours.stdout, ours.stderr)
    assert plain.returncode == 3


@pytest.mark.parametrize(
    ("source", "status"),
    [
        ("", 0),
        ("raise SystemExit", 0),
        ("raise SystemExit(5)", 5),
        ("raise SystemExit(-1)", 255),
        ("raise SystemExit(2**70)", 255),
        ("raise SystemExit('text')", 1),
        ("1/0", 1),
        ("x = (", 1),
        ("raise KeyboardInterrupt", runner.INTERRUPTED),
        ("from fdt.errors import UnsupportedError as E; raise E('x')", UnsupportedError.exit_status),
        ("from fdt.errors import UsageError as E; raise E('x')", UsageError.exit_status),
        ("from fdt.errors import UnsupportedError as E\ntry: raise E('x')\nexcept E as e: raise ValueError from e", 1),
    ],
)
def test_status(source: str, status: int, tmp_path: Path) -> None:
    assert runner.run(_write(tmp_path, source), []) == status


def test_an_error_of_ours_shows_the_scripts_lines_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # A function of Python's own stands between.
    text = "import re\nfrom fdt.errors import UnsupportedError as E\ndef fit(_):\n    raise E('no')\n\nre.sub('a', fit, 'a')\n"
    path = _write(tmp_path, text)
    runner.run(path, [])
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert [line.strip() for line in lines if line.startswith("  File")] == [
        f'File "{path}", line 6, in <module>',
        f'File "{path}", line 4, in fit',
    ]
    assert lines[-2:] == ["    raise E('no')", "fdt: no"]
    # Errors of the script's own have all of theirs.
    runner.run(_write(tmp_path, text.replace("raise E('no')", "1 / 0")), [])
    assert "/re/__init__.py" in capsys.readouterr().err


def _compiled(source: str, filename: str) -> dict[str, object]:
    namespace: dict[str, object] = {}
    exec(compile(source, filename, "exec"), namespace)  # to have frames of any file
    return namespace


_OURS = str(Path(runner.__file__).with_name("capture.py"))
_IMPORT = "<frozen importlib._bootstrap>"


def _files(error: BaseException) -> list[str]:
    return [Path(frame.filename).name for frame in traceback.extract_tb(error.__traceback__)]


def _called_through(*filenames: str) -> BaseException:
    """Returns an error whose traceback goes through these files."""
    call: object = None
    for filename in reversed(filenames):
        source = "def call(inner):\n    if inner is None: raise ValueError('x')\n    inner()"
        function = _compiled(source, filename)["call"]
        call = functools.partial(function, call)  # type: ignore[call-overload]
    try:
        call()  # type: ignore[operator]
    except ValueError as error:
        # The frames of this file stand between.
        return error
    raise AssertionError


def test_our_frames_are_peeled_off_wherever_they_stand() -> None:
    error = _called_through("train.py", _OURS, "keras.py", _OURS, "layer.py")
    runner.peel(error)
    assert [name for name in _files(error) if name != Path(__file__).name] == ["train.py", "keras.py", "layer.py"]


def test_the_import_system_around_our_hook_is_peeled_off_too() -> None:
    frames = [_entry(name) for name in ("train.py", _IMPORT, _IMPORT, _OURS, _IMPORT, "module.py", _IMPORT, "x.py")]
    kept = [entry.tb_frame.f_code.co_filename for entry in _walk(runner._without(_chain(frames), runner._is_ours))]
    assert kept == ["train.py", "module.py", _IMPORT, "x.py"]


def _entry(filename: str) -> object:
    namespace = _compiled("def call():\n    1/0", filename)
    try:
        namespace["call"]()  # type: ignore[operator]
    except ZeroDivisionError as error:
        assert error.__traceback__ is not None
        return error.__traceback__.tb_next
    raise AssertionError


def _chain(entries: list) -> object:
    for first, second in itertools.pairwise(entries):
        first.tb_next = second
    return entries[0]


def _walk(entry: object) -> Iterator:
    while entry is not None:
        yield entry
        entry = entry.tb_next  # type: ignore[attr-defined]


def test_chained_and_grouped_errors_are_peeled_and_circles_end() -> None:
    inner, cause, context = (_called_through(_OURS) for _ in range(3))
    group = ExceptionGroup("g", [inner])
    group.__cause__, group.__context__, cause.__context__ = cause, context, group
    runner.peel(group)
    assert all("capture.py" not in _files(error) for error in (inner, cause, context))


def test_finish_passes_a_status_and_dies_of_an_interrupt() -> None:
    assert runner.finish(3) == 3
    hook, sys.last_value = sys.excepthook, ValueError("the script's")
    last = sys.last_value
    with pytest.raises(KeyboardInterrupt):
        runner.finish(runner.INTERRUPTED)
    # What the interpreter does next: it notes the error and calls the hook, which forgets both.
    sys.last_value = KeyboardInterrupt()
    sys.excepthook(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert (sys.excepthook, sys.last_value) == (hook, last)


def test_unreadable_says_what_python_says(tmp_path: Path) -> None:
    assert runner.unreadable(_write(tmp_path, "")) is None
    assert runner.unreadable(str(tmp_path)) is None
    missing = str(tmp_path / "missing.py")
    assert runner.unreadable(missing) == (
        f"{sys.orig_argv[0]}: can't open file {missing!r}: [Errno 2] No such file or directory"
    )


def test_a_trace_function_of_before_is_kept(tmp_path: Path) -> None:
    def trace(*_: object) -> None:
        return None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        runner.run(_write(tmp_path, "import sys; sys.settrace(None)"), [])
        assert sys.gettrace() is trace
    finally:
        sys.settrace(before)
