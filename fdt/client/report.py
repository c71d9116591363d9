"""Writes what a person reads: lines on the terminal, and the JSON report of `--report`."""

import collections
import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fdt.base import rounding
from fdt.base.config import RunConfig
from fdt.base.printable import printable_lines
from fdt.base.progress_line import WAITING
from fdt.base.usage import delay_summary
from fdt.base.versions import versions
from fdt.client.faults import Fault
from fdt.forecast.forecasts import read
from fdt.forecast.links import Hosts
from fdt.forecast.step_time import CENTRAL, RING, SHARDED
from fdt.v1 import job_pb2, program_pb2

# Largest delay of an asynchronous run, for each worker, that needs no remark; equally fast workers have about one.
_LARGE_DELAY = 4
# Part of a run that is worth a word if steps were divided for so long.
_MUCH_DIVIDING = 0.1


def say(line: str) -> None:
    """Prints one line: on standard error, or where a program that uses `fdt.attach` logs."""
    WAITING.above(printable_lines(line))


@dataclasses.dataclass
class FitRecord:
    """One `fit`.

    Attributes:
        seconds: From the call of `fit` to its return.
        first_step_seconds: From the call of `fit` to the end of the first step, as reported to the client.
        step_seconds: Mean time of a step after that, of all workers together; includes the time between epochs.
        global_batch: Rows of a full step, over all workers; None if not known from the script's data.
        bytes_to_pool: Programs, arrays and values sent during this `fit`.
        logs: Logs of the last epoch.
        test_steps: Steps of validation that the pool made.
        ranks: What each worker did during this `fit`.
        updates_per_second: Steps of all workers, over `seconds`.
        delay: Asynchronous: mean, 95th percentile and maximum of the versions between pull and push.
        correction: Asynchronous: mean of compensation's part of a gradient, relative to its length; None without compensation.
        bytes_per_step: Bytes given to pull and push (asynchronous) or to the all-reduce, for one step.
    """

    steps: int
    epochs: int
    seconds: float
    first_step_seconds: float | None
    step_seconds: float | None
    global_batch: int | None
    bytes_to_pool: int
    bytes_from_pool: int
    bytes_exchanged: int
    logs: dict[str, float]
    ranks: list[dict[str, Any]]
    test_steps: int = 0
    updates_per_second: float = 0.0
    bytes_per_step: float = 0.0
    delay: dict[str, float] | None = None
    correction: float | None = None

    def __post_init__(self) -> None:
        """Computes the fields that follow from the others."""
        if self.steps and self.seconds:
            self.updates_per_second = round(self.steps / self.seconds, 3)
            self.bytes_per_step = round(self.bytes_exchanged / self.steps, 1)
        delays = _added(rank.get("delays", {}) for rank in self.ranks)
        if delays:
            self.delay = delay_summary(delays)
        pushes = sum(rank.get("corrected", 0) for rank in self.ranks)
        if pushes:
            self.correction = round(sum(rank["correction"] * rank["corrected"] for rank in self.ranks) / pushes, 6)


def closing_line(fits: Sequence[FitRecord], plain_s: float | None = None) -> str | None:
    """Returns a line on the speed of a run on several workers, and its causes; None if nothing was trained.

    Args:
        fits: The records of all training.
        plain_s: Seconds that a step takes in plain Python, if that is known.
    """
    steps, seconds = sum(fit.steps for fit in fits), sum(fit.seconds for fit in fits)
    if not steps or not seconds:
        return None
    delays = _added(rank.get("delays", {}) for fit in fits for rank in fit.ranks)
    return _of_updates(fits, steps / seconds, delays) if delays else _of_steps(fits, steps, seconds, plain_s)


def _of_updates(fits: Sequence[FitRecord], rate: float, delays: Mapping[int, int]) -> str:
    shown, num_workers = delay_summary(delays), max(len(fit.ranks) for fit in fits)
    line = (
        f"{sum(fit.steps for fit in fits)} updates, {rate:.1f} a second; delay mean {shown['mean']:.2f}, "
        f"95th percentile {shown['p95']:.0f}, largest {shown['max']:.0f}"
    )
    corrections = [fit.correction for fit in fits if fit.correction is not None]
    if corrections:
        line += f"; compensation {sum(corrections) / len(corrections):.3f} of the gradient"
    if num_workers > 1 and shown["max"] == 0:
        line += "; the workers took turns: the script looked at each step's result before it made the next"
    elif shown["max"] > _LARGE_DELAY * num_workers:
        line += "; with delays as large as that a model may learn less: --max-delay 2 bounds them"
    return line


def _of_steps(fits: Sequence[FitRecord], steps: int, seconds: float, plain_s: float | None) -> str:
    """Returns a line on synchronous workers' time; the remaining time is the script's and its machine's."""
    before = [fit.first_step_seconds for fit in fits if fit.first_step_seconds is not None]
    later = [(fit.steps - 1, fit.step_seconds) for fit in fits if fit.step_seconds is not None and fit.steps > 1]
    num_later = sum(number for number, _ in later)
    line = f"{steps} steps in {seconds:.1f} s"
    if before:
        line += f", {sum(before):.1f} s of them up to the first"
    if num_later:
        step_s = sum(number * each for number, each in later) / num_later
        line += f"; then {1 / step_s:.1f} a second"
        line += f", {plain_s / step_s:.2f} times plain python's as predicted" if plain_s is not None else ""
    ranks = [rank for fit in fits for rank in fit.ranks]
    busy = {
        word: sum(rank[name] for rank in ranks)
        for word, name in (("computing", "compute_s"), ("exchanging", "exchange_s"))
    }
    num_ranks = max(1, len(fits[0].ranks))
    parts = [f"{100 * time_s / num_ranks / seconds:.0f} % {word}" for word, time_s in busy.items()]
    line = f"{line}; the workers' time: {', '.join(parts)}, the rest waiting"
    divisions = [division for rank in ranks for division in rank.get("divided", ())]
    divided_s = sum(division["seconds"] for division in divisions)
    # A validation's step is divided, too, whatever sizes there are.
    if divided_s > _MUCH_DIVIDING * seconds and any(division["serves_other_sizes"] for division in divisions):
        line += (
            f"; dividing the step took {100 * divided_s / seconds:.0f} % of it: {len(divisions)} times, since batches had "
            "several sizes"
        )
    return line


class Report:
    """Collects the content of `--report`."""

    def __init__(self, config: RunConfig):
        self._config = config
        self.pool: program_pb2.Versions | None = None
        self.fits: list[FitRecord] = []
        self.faults: list[Fault] = []
        self.processes: list[job_pb2.ProcessUsage] = []

    def write(self, exit_status: int) -> None:
        """Writes the file, whole or not at all."""
        path = self._config.report
        if path is None:
            return
        partial = path.with_name(path.name + ".part")
        partial.write_text(json.dumps(self.content(exit_status), indent=2) + "\n")
        partial.replace(path)

    def closing_line(self) -> str | None:
        """Returns the line to print at the end of the run; None if there is none."""
        if self._config.num_workers == 1:
            return None
        known = None if self._config.prediction is None else read(self._config.prediction).workload.local
        return closing_line(self.fits, known)

    def content(self, exit_status: int) -> dict[str, Any]:
        """Returns the report as it is written."""
        return {
            "format": 1,
            "script": self._config.script,
            "mode": self._config.mode,
            "workers": self._config.num_workers,
            "options": dict(self._config.options),
            "versions": {"client": _fields(versions()), "pool": _fields(self.pool)},
            "exit_status": exit_status,
            "fits": [dataclasses.asdict(fit) for fit in self.fits],
            "faults": [dataclasses.asdict(fault) for fault in self.faults],
            "prediction": self._compared(),
            "processes": [
                {"rank": process.rank, "host": process.host, "samples": [sample_fields(s) for s in process.samples]}
                for process in self.processes
            ],
        }

    def _compared(self) -> dict[str, Any] | None:
        """Returns the prediction and the measurement of the training with the most steps."""
        if self._config.prediction is None or not self.fits:
            return None
        prediction = read(self._config.prediction)
        if isinstance(prediction.transport, Hosts):
            joined = dataclasses.replace(prediction.transport, rounded=rounding.is_rounded(self._config.options))
            prediction = dataclasses.replace(prediction, transport=joined)
        form, mode = form_of(self._config), self._config.mode
        forecast = dataclasses.replace(prediction, batch=self._config.batch).of(form, mode, self._config.num_workers)
        fit = max(self.fits, key=lambda fit: fit.steps)
        # A step with one batch for each worker counts as that many steps of the script.
        batches = self._config.num_workers if self._config.batch == "per-worker" else 1
        measured = None if fit.step_seconds is None else fit.step_seconds / batches
        return {
            "form": form,
            "mode": mode,
            "workers": self._config.num_workers,
            "predicted": dataclasses.asdict(forecast.step),
            "measured": measured,
            "error": None if measured is None else round(forecast.step.estimate / measured - 1, 6),
            "source": prediction.content(),
        }


def form_of(config: RunConfig) -> str:
    """Returns the form of a run's exchange, as `fdt.forecast.step_time` names it."""
    if config.mode == "sync":
        return RING
    return CENTRAL if config.options.get("ps", "1") == "1" else SHARDED


def _added(histograms: Iterable[Mapping[str, int]]) -> dict[int, int]:
    total: collections.Counter[int] = collections.Counter()
    for histogram in histograms:
        total.update({int(delay): count for delay, count in histogram.items()})
    return dict(sorted(total.items()))


def sample_fields(sample: job_pb2.Sample) -> dict[str, Any]:
    """Returns a sample as the report shows it."""
    names = ("time_s", "cores", "memory_bytes", "sent_bytes", "received_bytes")
    gpus = [{"index": g.index, "utilization": g.utilization, "memory_bytes": g.memory_bytes} for g in sample.gpus]
    return {**{name: getattr(sample, name) for name in names}, "gpus": gpus}


def _fields(message: program_pb2.Versions | None) -> dict[str, str]:
    return {f.name: getattr(message, f.name) for f in program_pb2.Versions.DESCRIPTOR.fields} if message else {}
