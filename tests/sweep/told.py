"""Small scripts after public reports (`situations/`): plain python twice, then every form of fdt; a table of what came of each.

    python -m tests.sweep.told --keep FOLDER                  # all of them, as far as FOLDER does not know them yet
    python -m tests.sweep.told --keep FOLDER --only lookup --ways sync verify --again

Raw results stay in FOLDER, and so does the table. TensorFlow is imported once: each run is a process forked from one that has
imported it. Not so where the script chooses Keras 2, which must be chosen before that import, or with --whole: then each run is
a command as a person types it. With --server the runs use a pool that stands already, which saves starting one for each.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import sys
import tempfile
import time
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.helpers.processes import PYTHON, Finished, run
from tests.sweep.comparing import largest_difference

_FOLDER = Path(__file__).parent / "situations"
_ROOT = _FOLDER.parents[2]
_WAYS = {
    "plain": (),
    "again": (),
    "sync": ("run", "--workers", "2"),
    "async": ("run", "--mode", "async", "--workers", "2"),
    "check": ("check", "--workers", "2"),
    "sync3": ("run", "--workers", "3"),
    "verify": ("verify", "--workers", "2"),
}
_LIMIT_S = {"plain": 150.0, "again": 150.0}
_FDT_LIMIT_S = 300.0
_SAME = 1e-4
_REFUSED = 125
_LOOK_S = 0.1
# What a script prints of its optimizers: it holds in every form, delayed gradients or not.
_UPDATES = re.compile(r"^updates.*$", re.MULTILINE)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, required=True, help="a folder for what is known of each script")
    parser.add_argument("--ways", nargs="*", choices=tuple(_WAYS), default=list(_WAYS))
    parser.add_argument("--only", default="", help="part of a name, or several with commas, in this order")
    parser.add_argument("--server", help="a pool that serves both modes with three workers")
    parser.add_argument("--again", action="store_true", help="what is known is tried anew")
    parser.add_argument("--whole", action="store_true", help="no forks")
    options = parser.parse_args()
    options.keep.mkdir(exist_ok=True)
    scripts = [each for name in options.only.split(",") for each in sorted(_FOLDER.glob("*.py")) if name in each.stem]
    for script in scripts:
        for way in options.ways:
            _try(script, way, options)
    (options.keep / "table.md").write_text(table([_known(script, options.keep) for script in scripts]))
    return 0


def _try(script: Path, way: str, options: argparse.Namespace) -> None:
    entry = _known(script, options.keep)
    if way in entry and not options.again:
        return
    command = _WAYS[way]
    if command and options.server and command[0] != "check":
        command = (command[0], "--server", options.server, *command[1:])
    begun = time.monotonic()
    limit_s = _LIMIT_S.get(way, _FDT_LIMIT_S)
    is_forked = not options.whole and "TF_USE_LEGACY_KERAS" not in script.read_text()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        finished = (_forked if is_forked else _whole)((*command, str(script)), Path(folder), limit_s)
    entry[way] = {
        "status": finished.status,
        "stdout": finished.stdout,
        "stderr": finished.stderr[-6000:],
        "took_s": round(time.monotonic() - begun, 1),
    }
    (options.keep / f"{script.stem}.json").write_text(json.dumps(entry, indent=1))
    print(f"{script.stem} {way}: {_verdict(entry, way)} ({entry[way]['took_s']} s)", flush=True)


def _known(script: Path, keep: Path) -> dict[str, Any]:
    kept = keep / f"{script.stem}.json"
    return json.loads(kept.read_text()) if kept.exists() else {"name": script.stem}


def _whole(arguments: Sequence[str], folder: Path, limit_s: float) -> Finished:
    """Runs a command in a process of its own; the last argument is the script, those before it are fdt's."""
    fdt = ("-m", "fdt") if len(arguments) > 1 else ()
    return run((PYTHON, *fdt, *arguments), limit_s=limit_s, cwd=folder, PYTHONPATH=str(_ROOT))


def _forked(arguments: Sequence[str], folder: Path, limit_s: float) -> Finished:
    """Does the same in a process that is forked from this one, which has imported TensorFlow."""
    import tensorflow  # noqa: F401

    streams = [folder.with_suffix(end) for end in (".out", ".err")]
    process = os.fork()
    if not process:
        _child(arguments, folder, streams)
    end = time.monotonic() + limit_s
    status: int | None = None
    while status is None and time.monotonic() < end:
        time.sleep(_LOOK_S)
        ended, code = os.waitpid(process, os.WNOHANG)
        status = os.waitstatus_to_exitcode(code) if ended else None
    # What it has left behind goes too.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    if status is None:
        os.waitpid(process, 0)
    texts = [stream.read_text(errors="replace") for stream in streams]
    for stream in streams:
        stream.unlink()
    return Finished(tuple(arguments), status, *texts)


def _child(arguments: Sequence[str], folder: Path, streams: Sequence[Path]) -> None:
    """Becomes plain python with a script, or fdt, and ends the process."""
    os.setsid()
    os.chdir(folder)
    for stream, number in zip(streams, (1, 2), strict=True):
        os.dup2(os.open(stream, os.O_WRONLY | os.O_CREAT, 0o600), number)
    status = 1
    try:
        status = _plain(arguments[0]) if len(arguments) == 1 else _fdt(arguments)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _plain(script: str) -> int:
    module = types.ModuleType("__main__")
    module.__file__ = script
    sys.modules["__main__"], sys.argv = module, [script]
    exec(compile(Path(script).read_text(), script, "exec"), module.__dict__)
    return 0


def _fdt(arguments: Sequence[str]) -> int:
    from fdt.cli.main import main as fdt

    sys.argv = ["fdt", *arguments]
    return fdt(arguments)


def _verdict(entry: dict[str, Any], way: str) -> str:
    """Returns what came of a script in a form, in a few words."""
    tried = entry[way]
    status, errors = tried["status"], tried["stderr"]
    told = [line.strip() for line in errors.splitlines() if line.startswith("fdt: ") or "Error" in line]
    last = (told or errors.strip().splitlines() or [""])[-1][:300]
    if status != 0:
        return "too slow" if status is None else f"{'refused' if status == _REFUSED else f'status {status}'}: {last}"
    if way == "plain":
        return "ended"
    plain = entry["plain"]
    if way == "check":
        return next((line for line in tried["stdout"].splitlines() if line.startswith("The script")), "says nothing")
    if way == "verify":
        return last.removeprefix("fdt: ")
    if way != "again" and "no training step was found" in errors:
        return "on this machine"
    difference = largest_difference(plain["stdout"], tried["stdout"])
    if way == "async" and difference is not None:
        if _UPDATES.findall(plain["stdout"]) != _UPDATES.findall(tried["stdout"]):
            return "other number of updates"
        return f"as many updates, {difference:.0e}"
    if difference is None:
        return "other lines"
    return f"{difference:.0e}" if difference < _SAME else f"DIFFERENT {difference:.0e}"


def table(entries: Sequence[dict[str, Any]]) -> str:
    """Returns the table as Markdown, a row for each script."""
    heads = "| situation | " + " | ".join(_WAYS) + " |"
    rows = [
        f"| {entry['name']} | " + " | ".join(_verdict(entry, way) if way in entry else "" for way in _WAYS) + " |"
        for entry in entries
    ]
    return "\n".join([heads, "|---" * (len(_WAYS) + 1) + "|", *rows, ""])


if __name__ == "__main__":
    sys.exit(main())
