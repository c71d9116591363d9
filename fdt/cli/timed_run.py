"""Runs a script as python does, and writes the times of its training steps to a file.

python -m fdt.cli.timed_run RESULT SECONDS STEPS WARM_UP SCRIPT [ARGS...]
"""

import dataclasses
import json
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

from fdt import capture
from fdt.base.sampler import Sampler
from fdt.client.report import sample_fields
from fdt.script import runner

_SAMPLE_S = 1.0
# A gap between two steps is a pause if it is longer than this many seconds, and than this many times the usual gap.
_PAUSE_S = 0.005
_PAUSE = 5.0


class Clock:
    """Measures steps, and ends the script once enough are measured."""

    def __init__(self, seconds: float, steps: int, warm_up: int):
        """Makes a clock without measurements.

        Args:
            seconds: How long to measure, if `steps` is 0.
            steps: Steps after which to end, warm-up included; 0 to end after `seconds`.
            warm_up: Number of first steps, which are not measured.
        """
        self._limit_s, self._limit, self._warm_up = seconds, steps, warm_up
        self._made = 0
        self._started_s = self._newest_s = 0.0
        # Seconds from one step's end to the next one's beginning.
        self._gaps: list[float] = []

    def count(self, steps: int, began_s: float) -> None:
        """Records steps.

        Args:
            steps: Their number.
            began_s: When they began, by the monotonic clock.

        Raises:
            SystemExit: Enough steps are measured.
        """
        before, gap, self._newest_s = self._made, began_s - self._newest_s, time.monotonic()
        self._made += steps
        if before < self._warm_up:
            self._started_s = self._newest_s
            return
        self._gaps.append(gap)
        if self._enough():
            raise SystemExit(0)

    def _enough(self) -> bool:
        if self._limit:
            return self._made >= self._limit
        return self._newest_s - self._started_s >= self._limit_s

    def result(self) -> "InPlace":
        """Returns the measurement."""
        if not self._gaps:
            return InPlace(self._made, 0, 0.0, 0.0)
        usual_s = statistics.median(self._gaps)
        paused_s = sum(gap - usual_s for gap in self._gaps if gap > max(_PAUSE_S, _PAUSE * usual_s))
        return InPlace(self._made, self._made - self._warm_up, self._newest_s - self._started_s, paused_s)


@dataclasses.dataclass(frozen=True)
class InPlace:
    """The times of a script's steps.

    Attributes:
        made: All steps.
        counted: Steps after the warm-up.
        seconds: The time of the counted steps.
        paused: The part of `seconds` in unusually long gaps between steps: validation, the end of an epoch.
    """

    made: int
    counted: int
    seconds: float
    paused: float


class _Sampling:
    """Samples this process's use of cores, memory and network in a thread."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self.samples: list[dict[str, Any]] = []
        self._thread = threading.Thread(target=self._run, name="fdt-samples", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        sampler = Sampler()
        while not self._stop.wait(_SAMPLE_S):
            self.samples.append(sample_fields(sampler.take()))

    def end(self) -> None:
        self._stop.set()
        self._thread.join(_SAMPLE_S)


def main(argv: list[str]) -> int:
    """Runs the script with the arguments that the module's docstring describes."""
    result, seconds, steps, warm_up, path, *arguments = argv
    clock = Clock(float(seconds), int(steps), int(warm_up))
    sampling = _Sampling()
    with capture.timed(clock.count):
        status = runner.run(path, arguments)
    sampling.end()
    content = {**dataclasses.asdict(clock.result()), "status": status, "samples": sampling.samples}
    Path(result).write_text(json.dumps(content) + "\n")
    return runner.finish(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
