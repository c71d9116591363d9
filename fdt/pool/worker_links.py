"""Keeps the pool's connections to its worker processes, and ends those that were asked to end and have not."""

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Iterator

from fdt.base import log
from fdt.pool.hosts import Host, JoinedHost
from fdt.pool.relay import Outbox
from fdt.worker.log_file import LogFolder


@dataclasses.dataclass
class WorkerLink:
    """The pool's connection to one process.

    Attributes:
        host: The host on which it runs.
        outbox: Messages that its stream will send.
        is_terminated: Whether it was sent SIGTERM, so that the next signal kills it.
    """

    host: Host
    outbox: Outbox
    is_terminated: bool = False


class WorkerLinks(dict[str, WorkerLink]):
    """Links by the processes' names; the supervisor's lock guards the table."""

    def __init__(self, logs: LogFolder, outbox_bytes: int, stop_s: float) -> None:
        """
        Args:
            logs: The workers' logs.
            outbox_bytes: The most bytes of instructions that wait for one worker.
            stop_s: Seconds until a process that was asked to end is terminated, and from then until it is killed.
        """
        super().__init__()
        self._logs, self._outbox_bytes, self._stop_s = logs, outbox_bytes, stop_s
        # When each process that was asked to end is terminated or, after that, killed; the first due comes first.
        self._due_s: dict[str, float] = {}

    def start(self, worker: str, mode: str, host: Host) -> None:
        """Starts a process.

        Raises:
            OSError: The process cannot be started; its link remains in the table until `forget`.
        """
        self[worker] = WorkerLink(host, Outbox(self._outbox_bytes))
        if isinstance(host, JoinedHost):
            text = f"(on host {host.label}; its log comes when the worker has ended)\n"
            self._logs.of(worker).write_text(text)
        host.start(worker, mode)

    def host_of(self, worker: str) -> Host | None:
        """Returns the host of a process; None if the process is unknown."""
        link = self.get(worker)
        return link.host if link is not None else None

    def label_of(self, worker: str) -> str:
        """Returns the label of a worker's host; "" for the pool's own machine."""
        host = self.host_of(worker)
        return host.label if isinstance(host, JoinedHost) else ""

    def end(self, worker: str) -> None:
        """Lets a process end by itself, and makes it end if it does not."""
        self[worker].outbox.close()
        self._due_s[worker] = time.monotonic() + self._stop_s

    def end_overdue(self) -> None:
        """Ends processes that were asked to end and have not."""
        now_s = time.monotonic()
        for worker in [worker for worker, _ in itertools.takewhile(lambda due: due[1] <= now_s, self._due_s.items())]:
            link = self[worker]
            (link.host.kill if link.is_terminated else link.host.terminate)(worker)
            link.is_terminated = True
            del self._due_s[worker]
            self._due_s[worker] = now_s + self._stop_s

    def on(self, host: Host) -> list[str]:
        """Returns the workers of a host."""
        return [worker for worker, link in self.items() if link.host is host]

    def forget(self, worker: str) -> None:
        """Deletes a process that has ended."""
        self._due_s.pop(worker, None)
        link = self.pop(worker, None)
        if link is not None:
            link.outbox.close()
            with said_only():
                self._logs.ended(worker)

    def close(self) -> None:
        """Ends all streams."""
        for link in self.values():
            link.outbox.close()


@contextlib.contextmanager
def said_only() -> Iterator[None]:
    """Reports an OSError and goes on: a file that remains, or is missing, harms no job."""
    try:
        yield
    except OSError as error:
        log.notice(str(error))
