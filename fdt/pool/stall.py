"""Whether an engine that has steps to make has stopped making them: heartbeats tell of a process, not of its work."""

import threading

# A step may take so many times longer than the longest wait for one so far.
_TIMES = 20.0


class StallWatch:
    """Looks now and then at how many steps have been made. Any thread may call."""

    def __init__(self, limit_s: float):
        """Has seen nothing.

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

    def ask(self, program: int, steps: int) -> None:
        """Takes note of steps that are to be made. The first of a program may take as long as it likes.

        Args:
            program: Its number.
            steps: How many.
        """
        with self._lock:
            if program not in self._programs:
                self._programs.add(program)
                self._cold = self._asked + 1
            self._asked += steps

    def look(self, done: int, now_s: float) -> float | None:
        """Returns for how many seconds no step has ended, if that is too long; else None.

        Args:
            done: Steps that have been made.
            now_s: By any clock that only moves forwards.
        """
        with self._lock:
            since_s, moved = self._since_s, done != self._done
            if since_s is None or moved or done >= self._asked or done < self._cold:
                if since_s is not None and self._cold <= self._done < self._asked:
                    self._longest_s = max(self._longest_s, now_s - since_s)
                self._done, self._since_s = done, now_s
                return None
            waited_s = now_s - since_s
        return waited_s if waited_s > max(self._limit_s, _TIMES * self._longest_s) else None
