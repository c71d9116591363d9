"""Scripts in forks of one process that has imported TensorFlow and Keras, which takes longer than all that they do.

For tests of what a script computes and is told. How a process starts and ends is for `tests.helpers.processes`, whose functions
these are like. What is read as a process starts, or as TensorFlow is imported, must not be in their environment.
"""

import atexit
import functools
import multiprocessing
import multiprocessing.context
import os
import runpy
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing import forkserver
from pathlib import Path
from unittest import mock

from tests.helpers.processes import Finished, environment

_IMPORTED = ["tensorflow", "keras", "fdt.cli.main", "fdt.capture"]


def run_fdt(
    script: Path,
    *arguments: str | Path,
    limit_s: float,
    workers: int = 2,
    mode: str = "sync",
    options: Sequence[str | Path] = (),
    cwd: Path | None = None,
    **env: str,
) -> Finished:
    """`fdt run --mode MODE --workers N OPTIONS SCRIPT ARGS`."""
    words = ("--mode", mode, "--workers", str(workers), *options, script, *arguments)
    return fdt("run", *words, limit_s=limit_s, cwd=cwd, **env)


def fdt(*arguments: str | Path, limit_s: float, cwd: Path | None = None, **env: str) -> Finished:
    """`fdt ARGS`."""
    return run_module("fdt", *arguments, limit_s=limit_s, cwd=cwd, **env)


def run_module(name: str, *arguments: str | Path, limit_s: float, cwd: Path | None = None, **env: str) -> Finished:
    """`python -m NAME ARGS`."""
    return _run(("-m", name, *map(str, arguments)), limit_s, cwd or Path.cwd(), env)


def run_python(script: Path, *arguments: str | Path, limit_s: float, cwd: Path | None = None, **env: str) -> Finished:
    """`python SCRIPT ARGS`."""
    return _run((str(script), *map(str, arguments)), limit_s, cwd or Path.cwd(), env)


def _run(arguments: tuple[str, ...], limit_s: float, cwd: Path, env: Mapping[str, str]) -> Finished:
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder, name) for name in ("stdout", "stderr")]
        process = _forks().Process(target=_become, args=(arguments, cwd, environment(**env), outputs))
        process.start()
        process.join(limit_s)
        status = process.exitcode
        with suppress(ProcessLookupError):
            os.killpg(process.pid or 0, signal.SIGKILL)
        process.join()
        process.close()
        stdout, stderr = (output.read_text(errors="replace") if output.exists() else "" for output in outputs)
    return Finished(("python", *arguments), status, stdout, stderr)


@functools.cache
def _forks() -> multiprocessing.context.ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    with mock.patch.dict(os.environ, environment()):
        forkserver.ensure_running()
    return context


def _become(arguments: Sequence[str], cwd: Path, env: Mapping[str, str], outputs: Sequence[Path]) -> None:
    """Does in this process what `python ARGUMENTS` would, and ends with its status."""
    os.setsid()
    for number, output in enumerate(outputs, 1):
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT), number)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.path.insert(0, str(cwd))
    try:
        if arguments[0] == "-m":
            sys.argv = ["-m", *arguments[2:]]
            # What the interpreter calls.
            vars(runpy)["_run_module_as_main"](arguments[1])
        else:
            sys.argv, sys.path[0] = list(arguments), str(Path(arguments[0]).absolute().parent)
            runpy.run_path(arguments[0], run_name="__main__")
    finally:
        # `multiprocessing` leaves the script's handlers out.
        atexit._run_exitfuncs()
