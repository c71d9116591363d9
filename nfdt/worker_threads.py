"""Runs the workers of a job as threads: each takes the next batches when it has finished its last ones."""

import collections
import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from nfdt.staleness_bound import StalenessBound

Batch = TypeVar("Batch")
# Calls per worker for which batches may be queued, and the least number of batches. With more, progress would lag behind.
_CALLS, _WAITING = 2, 4


@dataclasses.dataclass
class Account:
    """One worker's times and steps so far.

    Attributes:
        steps: Batches that it has finished.
        wait_s: Seconds in which it did not work.
        held_s: Seconds of `wait_s` in which the staleness bound held it.
    """

    steps: int = 0
    wait_s: float = 0.0
    held_s: float = 0.0


class WorkerThreads(Generic[Batch]):
    """Hands every batch to exactly one worker.

    An error of one worker stops all; the next call of `give`, `wait` or `done` raises it.
    """

    def __init__(
        self,
        num_workers: int,
        work: Callable[[int, Sequence[Batch]], float],
        gate: StalenessBound,
        choose: Callable[[int, Sequence[Batch]], int] = lambda worker, waiting: 1,
        most: int = 1,
        calls: int = 1,
    ):
        """Starts the threads.

        Args:
            num_workers: How many.
            work: Called with a worker's number and batches, in its thread; returns the seconds that it was held.
            gate: The staleness bound, which is told which workers are idle.
            choose: Called under the lock with a worker's number and the queued batches; returns how many the worker takes.
            most: The most batches that `choose` returns.
            calls: How many calls of `work` may run for one worker. A second one leaves batches for idle workers.
        """
        self._do, self._gate, self._choose = work, gate, choose
        self._changed = threading.Condition()
        self._batches: collections.deque[Batch] = collections.deque()
        self._limit = num_workers * max(_WAITING, _CALLS * most)
        self._error: BaseException | None = None
        self._closed = False
        self._busy = 0
        self._done = 0
        self.accounts = [Account() for _ in range(num_workers)]
        # For each worker: running calls, and since when it has none.
        self._calls, self._idle_since_s = [0] * num_workers, [time.perf_counter()] * num_workers
        self._threads = [
            threading.Thread(target=self._work, args=(worker,), name=f"fdt-worker-{worker}", daemon=True)
            for worker in range(num_workers)
            for _ in range(calls)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def done(self) -> int:
        """Batches that have been trained on.

        Raises:
            Exception: The first error of a worker.
        """
        with self._changed:
            self._raise()
            return self._done

    def give(self, batch: Batch) -> None:
        """Adds a batch; waits while many are queued."""
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or len(self._batches) < self._limit)
            self._raise()
            self._batches.append(batch)
            self._changed.notify_all()

    def wait(self) -> float:
        """Waits until all batches are done; returns when the queue became empty, by `time.perf_counter`."""
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or not self._batches)
            began_s = time.perf_counter()
            self._changed.wait_for(lambda: self._error is not None or not self._busy)
            self._raise()
            return began_s

    def close(self) -> None:
        """Lets the threads end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _work(self, worker: int) -> None:
        account = self.accounts[worker]
        while batches := self._take(worker):
            try:
                held_s = self._do(worker, batches)
            except BaseException as error:  # any error has to reach the main thread
                self._fail(error, len(batches))
                return
            with self._changed:
                account.wait_s += held_s
                account.held_s += held_s
                account.steps += len(batches)
                self._calls[worker] -= 1
                self._idle_since_s[worker] = time.perf_counter()
                self._busy -= len(batches)
                self._done += len(batches)
                self._changed.notify_all()

    def _take(self, worker: int) -> list[Batch]:
        with self._changed:
            if not (self._stopped() or self._may_take(worker)):
                if not self._calls[worker]:
                    self._gate.set_idle(worker, True)
                self._changed.wait_for(lambda: self._stopped() or self._may_take(worker))
            if self._stopped():
                return []
            self._gate.set_idle(worker, False)
            taken = [self._batches.popleft() for _ in range(self._choose(worker, self._batches))]
            if not self._calls[worker]:
                self.accounts[worker].wait_s += time.perf_counter() - self._idle_since_s[worker]
            self._calls[worker] += 1
            self._busy += len(taken)
            self._changed.notify_all()
            return taken

    def _may_take(self, worker: int) -> bool:
        """Whether a worker may take a batch; one with a running call leaves a batch for each worker without."""
        left = self._calls.count(0) if self._calls[worker] else 0
        return len(self._batches) > left

    def _stopped(self) -> bool:
        return self._closed or self._error is not None

    def _fail(self, error: BaseException, num_batches: int) -> None:
        self._gate.open()
        with self._changed:
            self._busy -= num_batches
            if self._error is None:
                self._error = error
            self._changed.notify_all()
