"""Fits a network's overlap and latency to runs whose step time was predicted and then measured."""

import dataclasses
import functools
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fdt.errors import UsageError
from fdt.forecast.forecasts import Prediction, parsed
from fdt.forecast.links import Hosts
from fdt.forecast.step_time import RING

# The coarse grid of the search (overlaps, latencies in seconds), which is then refined.
_OVERLAPS = [i / 20 for i in range(21)]
_LATENCIES_S = [0.0, *(1e-6 * 10 ** (i / 4) for i in range(21))]
_REFINEMENTS = 8
_NEAR = (-1.0, -0.5, 0.0, 0.5, 1.0)


@dataclasses.dataclass(frozen=True)
class Observation:
    """A run with its prediction.

    Attributes:
        name: Name of its report.
        prediction: The prediction of its step.
        form: RING, CENTRAL or SHARDED.
        mode: "sync" or "async".
        workers: How many.
        measured: Seconds of a step.
    """

    name: str
    prediction: Prediction
    form: str
    mode: str
    workers: int
    measured: float

    def predicted(self, overlap: float, latency: float) -> float:
        """Returns the estimate for a network with another overlap and latency."""
        assert isinstance(self.prediction.transport, Hosts)
        link = dataclasses.replace(self.prediction.transport, overlap=overlap, latency=latency)
        found = dataclasses.replace(self.prediction, transport=link).of(self.form, self.mode, self.workers)
        return found.step.estimate


@dataclasses.dataclass(frozen=True)
class Calibration:
    """The overlap and latency that fit the runs best.

    Attributes:
        overlap: See `fdt.forecast.links.Network`; unchanged if no run depends on it.
        latency: In seconds.
        errors: For each run, by its report's name: relative error of the estimate before and after.
    """

    overlap: float
    latency: float
    errors: dict[str, tuple[float, float]]

    def text(self) -> str:
        """Returns what to print."""
        lines = [f"{name}: error {before:+.1%}, now {after:+.1%}" for name, (before, after) in self.errors.items()]
        return "\n".join(
            [*lines, f"--overlap {self.overlap:.2f} --latency {self.latency * 1e6:.0f}us fit these runs best"]
        )

    def save(self, path: Path) -> None:
        """Writes a JSON file."""
        path.write_text(json.dumps({"kind": "calibration", **dataclasses.asdict(self)}, indent=2) + "\n")


def calibrate(paths: Sequence[Path]) -> Calibration:
    """Fits reports of `fdt run --prediction`.

    Raises:
        UsageError: A file is no such report, or its run's workers shared a machine.
    """
    return fit([_observation(path) for path in paths])


def fit(runs: Sequence[Observation]) -> Calibration:
    """Returns the overlap and latency whose estimates have the smallest mean square of relative errors."""

    @functools.cache
    def error(number: int, overlap: float, latency: float) -> float:
        return runs[number].predicted(overlap, latency) / runs[number].measured - 1

    def loss(overlap: float, latency: float) -> float:
        # Parameter servers are simulated, which takes long, and have no overlap, so that one simulation serves all overlaps.
        return sum(error(i, overlap if run.form == RING else 0.0, latency) ** 2 for i, run in enumerate(runs))

    first = runs[0].prediction.transport
    assert isinstance(first, Hosts)
    # Only the ring overlaps with computation.
    overlaps = _OVERLAPS if any(run.form == RING for run in runs) else [first.overlap]
    overlap, latency = min(itertools.product(overlaps, _LATENCIES_S), key=lambda pair: (loss(*pair), *pair))
    width, factor = 1 / 20, 10 ** (1 / 4)
    for _ in range(_REFINEMENTS):
        near = [min(1.0, max(0.0, overlap + width * part)) for part in _NEAR] if len(overlaps) > 1 else overlaps
        times = [latency * factor**part for part in _NEAR]
        overlap, latency = min(itertools.product(near, times), key=lambda pair: (loss(*pair), *pair))
        width, factor = width / 2, factor**0.5
    errors = {
        run.name: (_before(run) / run.measured - 1, run.predicted(overlap, latency) / run.measured - 1) for run in runs
    }
    return Calibration(overlap, latency, errors)


def _before(run: Observation) -> float:
    return run.prediction.of(run.form, run.mode, run.workers).step.estimate


def _observation(path: Path) -> Observation:
    try:
        content: Any = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UsageError(f"cannot read a report: {error}. Expected a file of `fdt run --report`: {path}") from error
    compared = content.get("prediction") if isinstance(content, dict) else None
    if not compared:
        raise UsageError(
            f"{path} says nothing of a prediction. Expected the report of `fdt run --prediction FILE --report {path.name}`"
        )
    prediction = parsed(compared["source"], str(path))
    if not isinstance(prediction.transport, Hosts):
        raise UsageError(f"the workers of {path} shared one machine: there is no network to calibrate")
    return Observation(
        str(path), prediction, compared["form"], compared["mode"], compared["workers"], compared["measured"]
    )
