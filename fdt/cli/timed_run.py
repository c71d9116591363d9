"""A process that runs a script as python does, and writes down how fast its training steps are.

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
# Between two steps: more than so many seconds, and so many times what is usual, is a pause.
_PAUSE_S = 0.005
_PAUSE = 5.0


class Clock:
    """Measures steps; ends the script when there are enough of them."""

    def __init__(self, seconds: float, steps: int, warm_up: int):
        """Measures nothing yet.

        Args:
            seconds: That the steps are to take, if their number is not given.
            steps: How many are enough; 0 if time tells.
            warm_up: Steps before those that count.
        """
        self._limit_s, self._limit, self._warm_up = seconds, steps, warm_up
        self._made = 0
        self._started_s = self._newest_s = 0.0
        # From one step's end to the next one's beginning.
        self._gaps: list[float] = []

    def count(self, steps: int, began_s: float) -> None:
        """Records steps.

        Args:
            steps: How many.
            began_s: When, by the monotonic clock.

        Raises:
            SystemExit: There are enough.
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
        """Returns what was measured."""
        if not self._gaps:
            return InPlace(self._made, 0, 0.0, 0.0)
        usual_s = statistics.median(self._gaps)
        paused_s = sum(gap - usual_s for gap in self._gaps if gap > max(_PAUSE_S, _PAUSE * usual_s))
        return InPlace(self._made, self._made - self._warm_up, self._newest_s - self._started_s, paused_s)


@dataclasses.dataclass(frozen=True)
class InPlace:
    """What was measured.

    Attributes:
        made: Steps that the script made.
        counted: Those after the warm-up.
        seconds: That these took.
        paused: Of this, what the script did for longer than usual between two steps: validation, the end of an epoch.
    """

    made: int
    counted: int
    seconds: float
    paused: float


class _Sampling:
    """Samples what this process uses."""

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
    """Runs the script; see the module."""
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
