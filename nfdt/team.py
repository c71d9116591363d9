"""The workers of a job as threads: each takes the next batch when it has done the last."""

import collections
import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from nfdt.gate import Gate

Batch = TypeVar("Batch")
# Batches that may wait for a worker, per worker. More would only hide how far the workers are.
_WAITING = 4


@dataclasses.dataclass
class Account:
    """What one worker did so far.

    Attributes:
        steps: Batches that it has done.
        busy_s: Seconds in which it worked.
        wait_s: Seconds in which it did not.
        held_s: Of these, in which there was a batch and the gate was closed: others were too far behind.
    """

    steps: int = 0
    busy_s: float = 0.0
    wait_s: float = 0.0
    held_s: float = 0.0


class Team(Generic[Batch]):
    """Hands every batch to exactly one worker.

    An error of one worker ends the work of all; whoever gives the next batch, or waits, gets it.
    """

    def __init__(self, num_workers: int, step: Callable[[int, Batch], None], gate: Gate):
        """Starts the threads.

        Args:
            num_workers: How many.
            step: Called with a worker's number and a batch, in that worker's thread.
            gate: Holds back workers that are too far ahead.
        """
        self._step, self._gate = step, gate
        self._changed = threading.Condition()
        self._batches: collections.deque[Batch] = collections.deque()
        self._limit = _WAITING * num_workers
        self._error: BaseException | None = None
        self._closed = False
        self._busy = 0
        self._done = 0
        self.accounts = [Account() for _ in range(num_workers)]
        self._threads = [
            threading.Thread(target=self._work, args=(worker,), name=f"fdt-worker-{worker}", daemon=True)
            for worker in range(num_workers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def done(self) -> int:
        """Batches that have been worked on.

        Raises:
            Exception: What ended the work.
        """
        with self._changed:
            self._raise()
            return self._done

    def give(self, batch: Batch) -> None:
        """Adds a batch; waits while many are there already."""
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or len(self._batches) < self._limit)
            self._raise()
            self._batches.append(batch)
            self._changed.notify_all()

    def wait(self) -> float:
        """Waits until all batches have been worked on; returns since when none was left to begin, by `time.perf_counter`."""
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or not self._batches)
            began_s = time.perf_counter()
            self._changed.wait_for(lambda: self._error is not None or not self._busy)
            self._raise()
            self._gate.level()
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
        while True:
            started_s = time.perf_counter()
            batch = self._take(worker)
            if batch is None:
                return
            taken_s = time.perf_counter()
            account.wait_s += taken_s - started_s
            try:
                self._step(worker, batch[0])
            except BaseException as error:  # whatever it is, the main thread must hear of it
                self._fail(error)
                return
            account.busy_s += time.perf_counter() - taken_s
            account.steps += 1
            with self._changed:
                self._gate.finished(worker)
                self._busy -= 1
                self._done += 1
                self._changed.notify_all()

    def _take(self, worker: int) -> tuple[Batch] | None:
        with self._changed:
            while not (self._stopped() or (self._batches and self._gate.is_open(worker))):
                began_s, is_held = time.perf_counter(), bool(self._batches)
                self._changed.wait()
                if is_held:
                    self.accounts[worker].held_s += time.perf_counter() - began_s
            if self._stopped():
                return None
            self._busy += 1
            batch = self._batches.popleft()
            self._changed.notify_all()
            return (batch,)

    def _stopped(self) -> bool:
        return self._closed or self._error is not None

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._busy -= 1
            if self._error is None:
                self._error = error
            self._changed.notify_all()
