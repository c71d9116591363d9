"""Compares a script's measured step times in each form with each other and with predictions (`fdt compare`).

All numbers are in one plain structure (`Comparison.content`), which the table, the page and the plots show.
"""

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fdt.forecast.forecasts import NAMES, Prediction, milliseconds
from fdt.forecast.step_time import CENTRAL, RING, SHARDED

FORMAT = 1
IN_PLACE = "in place"
# The parts of a worker's step, in the order in which they are shown.
PARTS = ("compute", "exchange", "wait", "input", "other")


@dataclasses.dataclass(frozen=True)
class Form:
    """A way of training.

    Attributes:
        form: IN_PLACE, or a form of `fdt.forecast.step_time`.
        mode: "sync", "async", or "" in place.
        workers: How many.
    """

    form: str
    mode: str = ""
    workers: int = 1

    @property
    def name(self) -> str:
        """The form's name for people."""
        if self.form == IN_PLACE:
            return "plain python"
        return f"{NAMES[self.form, self.mode]}, {self.workers} worker{'' if self.workers == 1 else 's'}"

    def options(self) -> list[str]:
        """Returns the options of `fdt run` for this form."""
        given = ["--mode", self.mode, "--workers", str(self.workers)]
        return [*given, "--ps", str(self.workers)] if self.form == SHARDED else given


def forms(numbers: Sequence[int]) -> list[Form]:
    """Returns the forms to compare for these numbers of workers, IN_PLACE first."""
    found = [Form(IN_PLACE)]
    for form, mode in ((RING, "sync"), (CENTRAL, "async"), (SHARDED, "async")):
        # One server is one shard.
        found += [Form(form, mode, n) for n in numbers if form != SHARDED or n > 1]
    return found


@dataclasses.dataclass(frozen=True)
class Measured:
    """One run.

    Attributes:
        form: What was run.
        steps: How many steps count, after the warm-up.
        step: Seconds per step.
        parts: Seconds of each of PARTS in a worker's step; unknown for a script in place.
        bytes: Bytes that a step exchanged.
        processes: What each process used: {"rank", "host", "samples": [{"time_s", "cores", "memory_bytes", ...}]}.
        error: Why the run failed; None if it succeeded.
        pause: For a script in place: the part of `step` that it spends at the ends of epochs, as in every form.
        each: `step` of all runs of this form, of which this one is the median; see `middle`.
    """

    form: Form
    steps: int = 0
    step: float | None = None
    parts: Mapping[str, float] = dataclasses.field(default_factory=dict)
    bytes: float = 0.0
    processes: Sequence[Mapping[str, Any]] = ()
    error: str | None = None
    pause: float = 0.0
    each: tuple[float, ...] = ()


def of_place(result: Mapping[str, Any]) -> Measured:
    """Makes a Measured from a result of `fdt.cli.timed_run`."""
    processes = [{"rank": 0, "host": "", "samples": result["samples"]}]
    counted = result["counted"]
    if not counted:
        error = (
            f"the script made {result['made']} training steps, all of them in the warm-up, which does not count; `fdt check` "
            "tells what a step is"
        )
        return Measured(Form(IN_PLACE), processes=processes, error=error)
    step, pause = result["seconds"] / counted, result["paused"] / counted
    return Measured(Form(IN_PLACE), counted, step, processes=processes, pause=pause)


def of_report(form: Form, report: Mapping[str, Any]) -> Measured:
    """Makes a Measured from a report of `fdt run --report`."""
    fits = [fit for fit in report["fits"] if fit["steps"]]
    steps = sum(fit["steps"] for fit in fits)
    if not steps:
        return Measured(form, processes=report["processes"], error="no training step was left after the warm-up")
    step = sum(fit["seconds"] for fit in fits) / steps
    # Synchronous workers make every step together; each asynchronous worker makes its own steps.
    of_worker = step * (form.workers if form.mode == "async" else 1)
    ranks = [rank for fit in fits for rank in fit["ranks"]]
    made = max(1, sum(rank["steps"] for rank in ranks))
    held = sum(rank.get("held_s", 0.0) for rank in ranks) / made
    known = {
        "compute": sum(rank["compute_s"] for rank in ranks) / made,
        "exchange": sum(rank["exchange_s"] for rank in ranks) / made,
        "wait": held,
        "input": max(0.0, sum(rank["wait_s"] for rank in ranks) / made - held),
    }
    parts = {**known, "other": max(0.0, of_worker - sum(known.values()))}
    exchanged = sum(fit["bytes_exchanged"] for fit in fits) / steps
    return Measured(form, steps, step, parts, exchanged, report["processes"])


@dataclasses.dataclass(frozen=True)
class Comparison:
    """All runs of one script.

    Attributes:
        script: Its command line.
        machine: A description of the machine.
        measured: One for each form, IN_PLACE first.
        prediction: The same script's prediction, or None.
    """

    script: str
    machine: str
    measured: Sequence[Measured]
    prediction: Prediction | None = None

    def content(self) -> dict[str, Any]:
        """Returns everything as a JSON object."""
        local = self.measured[0].step
        return {
            "format": FORMAT,
            "kind": "comparison",
            "script": self.script,
            "machine": self.machine,
            "runs": [self._run(measured, local) for measured in self.measured],
            "prediction": None if self.prediction is None else self.prediction.content(),
            "conclusions": self.conclusions(),
        }

    def _run(self, measured: Measured, local: float | None) -> dict[str, Any]:
        run = {**dataclasses.asdict(measured), **dataclasses.asdict(measured.form), "name": measured.form.name}
        run["speedup"] = None if local is None or measured.step is None else local / measured.step
        predicted = self._predicted(measured.form)
        run["predicted"] = predicted
        known = predicted is not None and measured.step is not None
        run["error_of_prediction"] = predicted["estimate"] / measured.step - 1 if known else None  # type: ignore[index, operator]
        return run

    def _predicted(self, form: Form) -> dict[str, float] | None:
        if self.prediction is None or form.form == IN_PLACE or not self.prediction.has(form.form, form.mode):
            return None
        # A prediction covers steps; the script's work between epochs is added, since it is the same in every form.
        step, pause = self.prediction.of(form.form, form.mode, form.workers).step, self.measured[0].pause
        return {end: value + pause for end, value in dataclasses.asdict(step).items()}

    def conclusions(self) -> list[str]:
        """Returns conclusions, as sentences."""
        local, *others = self.measured
        done = [m for m in others if m.step is not None]
        if local.step is None or not done:
            return []
        best = min(done, key=lambda m: m.step or 0.0)
        assert best.step is not None
        speedup = local.step / best.step
        lines = [f"Fastest of all workers: {best.form.name}, {speedup:.2f} times plain python."]
        if speedup < 1.05:
            lines = [
                f"No form was faster than plain python; the fastest was {best.form.name} ({speedup:.2f}). Larger batches or a "
                "larger model would have more to divide."
            ]
        if any(m.form.mode == "async" for m in done):
            lines.append(
                "An asynchronous step is made with older weights than a synchronous one: as many may learn less."
            )
        errors = [abs(run["error_of_prediction"]) for run in self._errors()]
        if errors:
            lines.append(f"Predictions were {statistics.mean(errors):.0%} off in the mean, at most {max(errors):.0%}.")
        return lines

    def _errors(self) -> list[dict[str, Any]]:
        runs = [self._run(m, self.measured[0].step) for m in self.measured]
        return [run for run in runs if run["error_of_prediction"] is not None]


@dataclasses.dataclass(frozen=True)
class Cell:
    """A number as text, and its value or None."""

    text: str
    value: float | None = None


COLUMNS = ("form", "steps", "a step", "speed-up", "predicted", "off", *PARTS, "MB a step")


def rows(content: Mapping[str, Any]) -> list[tuple[str, list[Cell]]]:
    """Returns the table of a comparison: for each successful run its name and the cells for the other COLUMNS."""
    return [(run["name"], _cells(run)) for run in content["runs"] if run["error"] is None]


def _cells(run: Mapping[str, Any]) -> list[Cell]:
    predicted = (run["predicted"] or {}).get("estimate")
    shown = [
        _cell(run["steps"], "{}".format),
        _cell(run["step"], milliseconds),
        _cell(run["speedup"], "{:.2f}".format),
        _cell(predicted, milliseconds),
        _cell(run["error_of_prediction"], "{:+.0%}".format),
    ]
    shown += [_cell(run["parts"].get(part), milliseconds) for part in PARTS]
    return [*shown, _cell(run["bytes"] if run["parts"] else None, lambda count: f"{count / 1e6:.2f}")]


def _cell(value: float | None, shown: Callable[[float], str]) -> Cell:
    return Cell("-") if value is None else Cell(shown(value), value)


def failures(content: Mapping[str, Any]) -> list[str]:
    """Returns a line for each failed run."""
    return [f"{run['name']}: {run['error']}" for run in content["runs"] if run["error"] is not None]


def text(content: Mapping[str, Any]) -> str:
    """Returns a comparison as printable text."""
    table = [list(COLUMNS), *([name, *(cell.text for cell in cells)] for name, cells in rows(content))]
    widths = [max(len(row[i]) for row in table) for i in range(len(COLUMNS))]
    lines = [
        "  ".join(cell.rjust(w) if i else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True)))
        for row in table
    ]
    told = [["", *lines] if len(lines) > 1 else [], failures(content), ["", *content["conclusions"]]]
    return "\n".join([content["machine"], *(line for part in told for line in part)]).rstrip()


def middle(runs: Sequence[Measured]) -> Measured:
    """Returns the run with the median step time, with the times of all runs; a failed run if there is one."""
    failed = [run for run in runs if run.error is not None]
    if failed:
        return failed[0]
    ordered = sorted(runs, key=lambda run: run.step or 0.0)
    return dataclasses.replace(ordered[(len(ordered) - 1) // 2], each=tuple(run.step or 0.0 for run in runs))
