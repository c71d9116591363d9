"""`fdt compare`: runs a script's first steps in each form of training, and shows the results side by side."""

import contextlib
import json
import os
import platform
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fdt.base import interpreter
from fdt.cli import sources
from fdt.cli.options import Compare
from fdt.client.report import say
from fdt.errors import UsageError
from fdt.forecast.comparison import Comparison, Form, Measured, failures, forms, middle, of_place, of_report, text
from fdt.forecast.forecasts import Prediction, read

# First steps of each run, which are not measured: they trace, fill caches and connect.
WARM_UP = 5
# A run may take this many seconds, and for its steps this many times as long as they took under plain python.
_LIMIT_S = 900.0
_SLOWER = 50.0
_END_S = 30.0
_TOLD_LINES = 3


def compare(options: Compare) -> int:
    """Runs the command; returns 1 if a form failed, else 0.

    Raises:
        UsageError: The output cannot be written, or the library for plots is missing.
    """
    # Checked before the runs, which take a while.
    from fdt.forecast import page

    page.check()
    folder = _folder(options.out)
    given = None if options.prediction is None else read(options.prediction)
    with tempfile.TemporaryDirectory(prefix="fdt-compare-") as scratch:
        comparison = _Runs(options, Path(scratch)).all(given)
    content = comparison.content()
    (folder / "comparison.json").write_text(json.dumps(content, indent=2) + "\n")
    page.write(content, folder)
    print(text(content), flush=True)
    say(f"written: {folder / page.NAME}, with comparison.json and plots beside it")
    return 1 if failures(content) else 0


def _folder(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write there: {error}. Expected a directory for --out: {path}") from error
    if not os.access(path, os.W_OK):
        raise UsageError(f"cannot write there: expected a directory for --out that is writable. Received: {path}")
    return path


class _Runs:
    """Runs the script in every form, each in a process of its own, one at a time."""

    def __init__(self, options: Compare, scratch: Path):
        self._options, self._scratch = options, scratch
        self._script = [options.script, *options.arguments]
        # Seconds that all steps took under plain python; 0 before they are measured.
        self._steps_s = 0.0

    def all(self, prediction: Prediction | None) -> Comparison:
        """Runs every form."""
        numbers = self._options.workers or (1, 2)
        first = self._in_place(WARM_UP + self._options.steps if self._options.steps else 0)
        if first.error is not None:
            return Comparison(" ".join(self._script), _machine(1), [first])
        prediction = prediction or self._predict(numbers)
        rounds = [[first, *self._others(numbers, first.steps)]]
        # All forms in turn, so that a machine that becomes slower affects all forms.
        for _ in range(1, self._options.repeat):
            rounds.append([self._in_place(first.steps + WARM_UP), *self._others(numbers, first.steps)])
        measured = [middle(of_form) for of_form in zip(*rounds, strict=True)]
        return Comparison(" ".join(self._script), _machine(self._options.repeat), measured, prediction)

    def _others(self, numbers: Sequence[int], steps: int) -> list[Measured]:
        return [self._distributed(form, steps) for form in forms(numbers)[1:]]

    def _in_place(self, limit: int) -> Measured:
        say("plain python")
        result, options = self._scratch / "in_place.json", self._options
        command = ["fdt.cli.timed_run", str(result), str(options.seconds), str(limit), str(WARM_UP)]
        # The limit is generous: the script may make fewer steps than wanted, and then do other work for long.
        failure = self._run([*command, *self._script], _LIMIT_S + _SLOWER * options.seconds)
        if failure is not None or not result.exists():
            return Measured(Form("in place"), error=failure or "it ended without a result")
        measured = of_place(json.loads(result.read_text()))
        self._steps_s = measured.steps * (measured.step or 0.0)
        return measured

    def _predict(self, numbers: Sequence[int]) -> Prediction | None:
        say("measuring what a prediction needs")
        saved = self._scratch / "prediction.json"
        where = self._pool() or ["--measure"]
        command = ["fdt", "predict", *where, "--workers", ",".join(map(str, numbers)), "--json", str(saved)]
        failure = self._run([*command, *self._script], _LIMIT_S)
        if failure is not None or not saved.exists():
            say(f"no prediction: {failure or 'it ended without a result'}")
            return None
        return read(saved)

    def _distributed(self, form: Form, steps: int) -> Measured:
        say(form.name)
        report = self._scratch / "report.json"
        report.unlink(missing_ok=True)
        counted = ["--warm-up", str(WARM_UP), "--stop-after", str(WARM_UP + steps), "--report", str(report)]
        command = ["fdt", "run", *form.options(), *self._pool(), *counted]
        failure = self._run([*command, *self._script], _LIMIT_S + _SLOWER * self._steps_s)
        if failure is not None or not report.exists():
            return Measured(form, error=failure or "it ended without a report")
        return of_report(form, json.loads(report.read_text()))

    def _pool(self) -> list[str]:
        options = self._options
        given = [("--server", options.server), ("--token-file", options.token_file), ("--tls-ca", options.tls_ca)]
        return [word for flag, value in given if value is not None for word in (flag, str(value))]

    def _run(self, command: Sequence[str], limit_s: float) -> str | None:
        """Runs a module of FDT until it ends.

        Returns:
            The failure, in words; None for success.
        """
        log = self._scratch / "log"
        # Options that the environment or files set are removed: runs differ only by their form.
        environment = sources.cleared(os.environ)
        with open(log, "wb") as file:
            process = subprocess.Popen(
                interpreter.of_module("fdt.script.file_overlay", str(self._scratch), *command),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=environment,
            )
            try:
                status = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                return f"it took longer than {limit_s:.0f} s"
            finally:
                _end(process)
        if status == 0:
            return None
        return f"exit status {status}: {_last_words(log.read_text(errors='replace'))}"


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Interrupts a process as Ctrl-C does, and kills it if it does not end."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
            return
        process.kill()
        process.wait()


def _last_words(output: str) -> str:
    """Returns the last lines of a process's output, which explain its failure."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    ours = [line.removeprefix("fdt: ") for line in lines if line.startswith("fdt: ")]
    return " / ".join((ours[-1:] or lines[-_TOLD_LINES:]) or ["it said nothing"])


def _machine(repeat: int) -> str:
    from fdt.base.versions import versions

    known: Any = versions()
    return (
        f"{len(os.sched_getaffinity(0))} cores, {platform.system()} {platform.machine()}, Python {known.python}, "
        f"TensorFlow {known.tensorflow}, fdt {known.fdt}; "
        + ("every form ran once" if repeat == 1 else f"medians of {repeat} runs of every form, in turn")
    )
