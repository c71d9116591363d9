"""Tells whether an engine that has steps to make has stopped making them: heartbeats tell of a process only.

A step like those before it has a limit. The first of a program is divided and compiled, which may take long, as the wait for
others who do so may. A process that waits leaves the processor idle; where all of a job's do, nobody works any more, which the
pool sees (`fdt.pool.failure_detector`).
"""

import threading

# A step may take so many times longer than the longest wait for one so far.
_TIMES = 20.0
# A process that uses less of a core waits: Horovod's thread, which looks for others' news all the time, uses some of one.
_IDLE_CORES = 0.25
# What a waiting process may use at once besides.
_BURST_S = 0.5


class StallWatch:
    """Looks now and then at how many steps have been made. Any thread may call.

    Attributes:
        idle_s: For how long the first step of a program has used next to no processor.
    """

    def __init__(self, limit_s: float):
        """
        Args:
            limit_s: No wait below this is a stall.
        """
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._programs: set[int] = set()
        # Steps in all that were asked for; up to which one there is a program that is only being made ready.
        self._asked = self._cold = 0
        self._done = 0
        self._since_s: float | None = None
        self._longest_s = 0.0
        self.idle_s = 0.0
        # Since when it has used next to none, how much that was, and when it was last looked at.
        self._worked_s: float | None = None
        self._used_s = self._looked_s = 0.0

    def ask(self, program: int, steps: int) -> None:
        """Records steps that are to be made. The first of a program may take as long as it likes.

        Args:
            program: Its number.
            steps: How many.
        """
        with self._lock:
            if program not in self._programs:
                self._programs.add(program)
                self._cold = self._asked + 1
            self._asked += steps

    def look(self, done: int, now_s: float, cores: float = 1.0) -> float | None:
        """Returns for how many seconds no step has ended, if that is too long; else None.

        Args:
            done: Steps that have been made.
            now_s: By any clock that only moves forwards.
            cores: That the process has used since the last look.
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
