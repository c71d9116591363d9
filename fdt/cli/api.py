"""Implements `fdt.run` and `fdt.attach`: `fdt run` from Python, with the same options (`fdt.cli.options.Run`)."""

import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from fdt.base import interpreter
from fdt.cli.command_line import Parser, parse
from fdt.cli.options import MODES, Run
from fdt.errors import FdtError, RunError, UsageError

# Seconds that an interrupted script has to end before it is interrupted again, and then killed.
_END_S = 30.0
# Options of `fdt run` that have no meaning in `attach`.
_OF_COMMAND = ("detach", "dry_run", "stop_after", "warm_up")


class Result:
    """How a script ended.

    Attributes:
        status: Its exit status.
        report: The content of `--report`: "fits" with steps, seconds, bytes and each worker's times, "faults", "versions".
    """

    def __init__(self, status: int, report: Mapping[str, Any]):
        self.status, self.report = status, report

    def __repr__(self) -> str:
        """Returns a text with the exit status, the steps and the workers."""
        steps = sum(fit["steps"] for fit in self.report.get("fits", ()))
        return f"<fdt.Result: exit status {self.status}, {steps} steps on {self.report.get('workers', 0)} workers>"


def run(
    script: str | Path,
    *arguments: str,
    mode: str | None = None,
    workers: int | str | tuple[int, int] | None = None,
    check: bool = True,
    **options: Any,
) -> Result:
    """Runs a script as `fdt run` does, in a new process, and waits for its end.

    Args:
        script: A Python file, or a notebook.
        arguments: Its `sys.argv[1:]`.
        mode: "sync" or "async".
        workers: The number of workers; "2..8" or (2, 8) for as many as are free, within these bounds.
        check: Whether an exit status other than 0 is an error.
        options: Other options of `fdt run`, with underscores: `scale_lr="linear"`, `server="pool:7077"`, `else_="local"`.

    Raises:
        UsageError: An option is wrong; nothing was started.
        RunError: The script ended with an exit status other than 0; its standard error has the reason.
    """
    told = arguments_of(mode=mode, workers=workers, **options)
    checked = parse_options([*told, "--", str(script), *arguments])
    with tempfile.TemporaryDirectory(prefix="fdt-api-") as folder:
        report = checked.report
        if report is None:
            report = Path(folder) / "report.json"
            told.append(f"--report={report}")
        report.unlink(missing_ok=True)
        command = interpreter.for_script("fdt", "run", *told, "--", str(script), *arguments)
        status = _finished(subprocess.Popen(command))
        result = Result(status, json.loads(report.read_text()) if report.exists() else {})
    if check and status:
        raise RunError(f"{script} ended with status {status}. Expected 0; standard error has the reason.", result)
    return result


def _finished(process: "subprocess.Popen[bytes]") -> int:
    """Waits for a script's end; on KeyboardInterrupt, waits `_END_S`, then interrupts the script, then kills it.

    Ctrl-C on a terminal has reached the script too; a SIGINT of another program has reached this process only.
    """
    try:
        return process.wait()
    except KeyboardInterrupt:
        for end in (lambda: None, lambda: process.send_signal(signal.SIGINT), process.kill):
            end()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
                break
        raise


def attach(mode: str | None = None, workers: int | str | tuple[int, int] | None = None, **options: Any) -> "Attached":
    """Sends the training of this process to workers, until `Attached.detach`.

    Models and functions that were traced earlier are traced again.

    Args:
        mode: "sync" or "async".
        workers: The number of workers; "2..8" or (2, 8) for as many as are free, within these bounds.
        options: Other options of `fdt run`; see `run`.

    Raises:
        UsageError: An option is wrong, or this process is attached already.
        PoolError: There is no pool, no access, another version, or too few workers.
    """
    return Attached(parse_options([*arguments_of(mode=mode, workers=workers, **options), "--", _name()]))


class Attached:
    """Sends the training of this process to a pool. A context manager: its exit, or `detach`, removes all hooks."""

    _current: "Attached | None" = None

    def __init__(self, options: Run):
        from fdt.base.quiet_grpc import import_grpc

        import_grpc()
        from fdt import capture
        from fdt.base.progress_line import WAITING
        from fdt.capture.purpose import Training
        from fdt.cli.settings import check_runtime, run_config
        from fdt.client.report import say
        from fdt.client.session import Session

        if capture.is_hooked():
            raise UsageError(
                "this process trains on a pool already, because of fdt.attach, or because the script runs under `fdt run`: "
                "detach it first, or run the script with python"
            )
        for name in _OF_COMMAND:
            if vars(options)[name]:
                raise UsageError(f"{name} applies to the command `fdt run` only: leave it out")
        check_runtime(options)
        config = run_config(options)
        self._ending = contextlib.ExitStack()
        with contextlib.ExitStack() as started:
            WAITING.of_library = True
            started.callback(setattr, WAITING, "of_library", False)
            self._session = Session(config)
            # Pushed first: if `__enter__` fails, a pool that it has started must end, though this process goes on.
            started.push(self._session)
            self._session.__enter__()
            started.enter_context(capture.hooks(Training(self._session), stays=say if config.else_local else None))
            started.enter_context(capture.traced_anew(say))
            self._ending = started.pop_all()
        Attached._current = self
        # Called before Python ends the threads that the connection uses; `atexit` handlers run too late.
        vars(threading)["_register_atexit"](self.detach)

    @classmethod
    def current(cls) -> "Attached | None":
        """Returns the attachment of this process; None if there is none."""
        return cls._current

    @property
    def report(self) -> dict[str, Any]:
        """The content of `fdt run --report`, for the training so far."""
        return self._session.report(0)

    def detach(self, status: int = 0) -> None:
        """Fetches all values from the pool, ends the job (and an embedded pool), and removes all hooks. May be called twice.

        Args:
            status: The exit status that the pool's list of jobs shows; 0 for success.

        Raises:
            FdtError: The report cannot be written, or the pool is lost, and the values with it.
        """
        if Attached._current is not self:
            return
        Attached._current = None
        with self._ending:
            self._session.close(status)
            self._session.write_report(status)

    def __enter__(self) -> "Attached":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self.detach(0 if kind is None else 1)
        except FdtError:
            # The first error is the cause.
            if kind is None:
                raise


class _ApiParser(Parser):
    """A parser that raises UsageError; argparse itself prints errors and exits."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def parse_options(argv: list[str]) -> Run:
    """Parses arguments of `fdt run`.

    Raises:
        UsageError: An argument is wrong.
    """
    options = parse("fdt", tuple(MODES), ["run", *argv], _ApiParser)
    assert isinstance(options, Run)
    return options


def arguments_of(**options: Any) -> list[str]:
    """Returns the command-line arguments for options given from Python; leaves out None and False."""
    found = []
    for name, value in options.items():
        flag = "--" + name.rstrip("_").replace("_", "-")
        if value is True:
            found.append(flag)
        elif isinstance(value, list | tuple) and name == "workers":
            found.append(f"{flag}={'..'.join(map(str, value))}")
        elif value is not None and value is not False:
            found += [f"{flag}={each}" for each in (value if isinstance(value, list | tuple) else [value])]
    return found


def _name() -> str:
    """Returns the name of this process's training in the pool's list of jobs."""
    main: Any = sys.modules.get("__main__")
    return getattr(main, "__file__", None) or "interactive"
