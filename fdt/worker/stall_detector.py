"""Detects an engine that has steps to make and makes none; a heartbeat shows only that its process runs.

The first step of a program has no time limit: dividing and compiling it, or waiting for other workers that do, may take long.
For this step, the worker reports for how long its process has been idle; if all processes of a job are idle, the pool detects
the stall (`fdt.pool.failure_detector`).
"""

import threading

# A step may take this many times as long as the longest wait for a step so far.
_TIMES = 20.0
# A process that uses less of a core counts as idle; a waiting one uses some, in Horovod's thread, which polls for messages.
_IDLE_CORES = 0.25
# Core-seconds that an idle process may use in addition, in a burst.
_BURST_S = 0.5


class StallWatch:
    """Monitors the number of finished steps. Any thread may call its methods.

    Attributes:
        idle_s: For how long the first step of a program has used almost no processor.
    """

    def __init__(self, limit_s: float):
        """
        Args:
            limit_s: Seconds; a shorter wait is never a stall.
        """
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._programs: set[int] = set()
        # The number of requested steps, and which of them is the first one of the newest program.
        self._asked = self._cold = 0
        self._done = 0
        self._since_s: float | None = None
        self._longest_s = 0.0
        self.idle_s = 0.0
        # When the process became idle, the core-seconds that it has used since, and the time of the last look.
        self._worked_s: float | None = None
        self._used_s = self._looked_s = 0.0

    def ask(self, program: int, steps: int) -> None:
        """Records steps to be made. The first step of a program has no limit.

        Args:
            program: Its number.
            steps: Their number.
        """
        with self._lock:
            if program not in self._programs:
                self._programs.add(program)
                self._cold = self._asked + 1
            self._asked += steps

    def look(self, done: int, now_s: float, cores: float = 1.0) -> float | None:
        """Returns the seconds since the last step ended if they are above the limit, otherwise None.

        Args:
            done: The number of finished steps.
            now_s: The time by a monotonic clock.
            cores: The cores that the process has used on average since the last look.
        """
        with self._lock:
            self._look_idle(done >= self._cold, now_s, cores)
            since_s, moved = self._since_s, done != self._done
            if since_s is None or moved or done >= self._asked or done < self._cold:
                if since_s is not None and self._cold <= self._done < self._asked:
                    self._longest_s = max(self._longest_s, now_s - since_s)
                self._done, self._since_s = done, now_s
                return None
            waited_s = now_s - since_s
        return waited_s if waited_s > max(self._limit_s, _TIMES * self._longest_s) else None

    def _look_idle(self, is_warm: bool, now_s: float, cores: float) -> None:
        self._used_s, self._looked_s = self._used_s + cores * (now_s - self._looked_s), now_s
        if self._worked_s is None or is_warm or self._used_s > _IDLE_CORES * (now_s - self._worked_s) + _BURST_S:
            self._worked_s, self._used_s = now_s, 0.0
        self.idle_s = now_s - self._worked_s
