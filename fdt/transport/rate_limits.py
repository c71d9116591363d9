"""Limits a pool's calls: bounds their number for each client and in all, and ends calls that stand still."""

import collections
import contextlib
import dataclasses
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from typing import Any, TypeVar

import grpc

from fdt.base.config import Timing
from fdt.base.limits import Limits
from fdt.errors import CapacityError

T = TypeVar("T")

# A thread ends after this many seconds without a call.
_IDLE_THREAD_S = 2.0


@dataclasses.dataclass(frozen=True)
class _Kind:
    """Calls that are counted together.

    Attributes:
        name: Their name in messages to people.
        in_all: The most such calls at once.
        each: The most such calls of one client at once.
        pause_s: How long the client may pause between two messages; None if its disconnection is noticed otherwise.
        unread_s: How long a reply may wait until the client reads it; None if its disconnection is noticed otherwise.
    """

    name: str
    in_all: int
    each: int
    pause_s: float | None = None
    unread_s: float | None = None


class Visit:
    """One admitted call, with the deadline for the client's next action."""

    def __init__(
        self, kind: _Kind, limits: Limits, cancel: Callable[[], object], heard: Callable[["Visit"], None]
    ) -> None:
        self._kind, self._cancel, self._heard = kind, cancel, heard
        # When the call is ended for standing still, by the monotonic clock; None while it waits for nothing from the client.
        self.due_s: float | None = time.monotonic() + limits.first_message_s

    def end(self) -> None:
        """Ends the call."""
        self.due_s = None
        self._cancel()

    def requests(self, messages: Iterable[T]) -> Iterator[T]:
        """Yields the client's messages, and sets the deadline of each."""
        for message in messages:
            self._heard(self)
            self._expect(None)
            yield message
            self._expect(self._kind.pause_s)
        self._heard(self)
        self._expect(None)

    def replies(self, messages: Iterable[T]) -> Iterator[T]:
        """Yields messages for the client, and sets the deadline for it to read each."""
        for message in messages:
            self._expect(self._kind.unread_s)
            yield message
            self._expect(None)

    def _expect(self, limit_s: float | None) -> None:
        self.due_s = None if limit_s is None else time.monotonic() + limit_s


class RateLimiter:
    """Counts the calls of one server, and ends calls that stand still."""

    def __init__(
        self,
        limits: Limits,
        timing: Timing,
        num_workers: int = 0,
        num_hosts: int = 0,
        client_of: Callable[[grpc.ServicerContext], str] = lambda context: context.peer(),
    ) -> None:
        """
        Args:
            limits: The pool's.
            timing: `chunk_s` is how long an upload may pause.
            num_workers: Workers that may attach.
            num_hosts: Hosts that may attach.
            client_of: Returns the client that a call counts against; by default the connection's address.
        """
        self._limits, self._client_of = limits, client_of
        self._short = _Kind("short calls", limits.short_calls, limits.short_calls_each)
        # Calls of a job's rendezvous, which all of its processes make at the same moment.
        rendezvous = _Kind("calls of workers", num_workers, num_workers)
        uploads = _Kind("uploads", limits.uploads, limits.uploads_each, pause_s=timing.chunk_s)
        downloads = _Kind("downloads", limits.downloads, limits.downloads_each, unread_s=limits.unread_s)
        self._kinds = {
            "fdt.v1.Jobs/Train": _Kind("jobs", limits.jobs, limits.jobs_each),
            "fdt.v1.Blobs/Put": uploads,
            "fdt.v1.Blobs/Get": downloads,
            "fdt.v1.Workers/PutBlob": uploads,
            "fdt.v1.Workers/GetBlob": downloads,
            "fdt.v1.Pool/GetLogs": downloads,
            # Workers of the pool's own machine count as one connection, since a unix socket does not distinguish peers.
            "fdt.v1.Workers/Attach": _Kind("workers", num_workers, num_workers),
            "fdt.v1.Workers/PutValue": rendezvous,
            "fdt.v1.Workers/GetValue": rendezvous,
            "fdt.v1.Hosts/Attach": _Kind("hosts", num_hosts, num_hosts),
        }
        # The most calls without a first message. Each worker may have one that has just begun.
        self._num_silent = limits.silent_calls + num_workers
        self._lock = threading.Lock()
        self._num: collections.Counter[_Kind] = collections.Counter()
        self._num_each: collections.Counter[tuple[_Kind, str]] = collections.Counter()
        self._visits: set[Visit] = set()
        # Calls without a first message, in the order of their arrival.
        self._silent: dict[Visit, None] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fdt-rate-limits", daemon=True)

    @property
    def max_calls(self) -> int:
        """The most calls, and so threads, at once, including calls that are being refused."""
        kinds = {self._short, *self._kinds.values()}
        return sum(kind.in_all for kind in kinds) + self._num_silent

    def start(self) -> None:
        """Starts the thread that ends calls that stand still."""
        self._thread.start()

    def close(self) -> None:
        """Ends the thread."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    @contextlib.contextmanager
    def visit(self, method: str, context: grpc.ServicerContext) -> Iterator[Visit]:
        """Admits a call for as long as it lasts.

        Args:
            method: "package.Service/Method".
            context: The call's context.

        Raises:
            CapacityError: The most calls of this kind are running.
        """
        kind, client = self._kinds.get(method, self._short), self._client_of(context)
        visit = Visit(kind, self._limits, context.cancel, self._has_spoken)
        with self._lock:
            self._enter(kind, client)
            self._visits.add(visit)
            self._silent[visit] = None
            oldest = next(iter(self._silent)) if len(self._silent) > self._num_silent else None
            if oldest is not None:
                del self._silent[oldest]
        if oldest is not None:
            oldest.end()
        try:
            yield visit
        finally:
            with self._lock:
                self._leave(kind, client)
                self._visits.discard(visit)
                self._silent.pop(visit, None)

    def _enter(self, kind: _Kind, client: str) -> None:
        if self._num_each[kind, client] >= kind.each:
            raise CapacityError(f"The pool serves {kind.each} {kind.name} of one client at once. Wait for one to end.")
        if self._num[kind] >= kind.in_all:
            raise CapacityError(f"The pool serves {kind.in_all} {kind.name} at once. Try again later.")
        self._num[kind] += 1
        self._num_each[kind, client] += 1

    def _leave(self, kind: _Kind, client: str) -> None:
        self._num[kind] -= 1
        self._num_each[kind, client] -= 1
        if not self._num_each[kind, client]:
            del self._num_each[kind, client]

    def _has_spoken(self, visit: Visit) -> None:
        with self._lock:
            self._silent.pop(visit, None)

    def _run(self) -> None:
        while not self._stop.wait(min(0.5, self._limits.first_message_s / 4)):
            now_s = time.monotonic()
            with self._lock:
                late = [visit for visit in self._visits if visit.due_s is not None and visit.due_s <= now_s]
            for visit in late:
                visit.end()


class CallThreads(futures.Executor):
    """Runs each call in a thread of its own. gRPC's server bounds the number of calls; idle threads soon end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._work: queue.SimpleQueue[tuple[futures.Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._num_idle = 0
        self._num_started = 0

    def submit(self, do: Callable[..., T], /, *args: Any, **kwargs: Any) -> "futures.Future[T]":
        """Runs a call at once, in an idle thread or a new one."""
        future: futures.Future[T] = futures.Future()
        with self._lock:
            spare = self._num_idle > 0
            # The idle thread that will take this call is counted as busy from here on.
            self._num_idle -= spare
            self._num_started += not spare
            number = self._num_started
        self._work.put((future, lambda: do(*args, **kwargs)))
        if not spare:
            threading.Thread(target=self._run, name=f"fdt-call_{number}", daemon=True).start()
        return future

    def _run(self) -> None:
        while (taken := self._next()) is not None:
            future, do = taken
            try:
                future.set_result(do())
            except BaseException as error:
                future.set_exception(error)
            # A call's objects must not live until the next call.
            del taken, future, do
            with self._lock:
                self._num_idle += 1

    def _next(self) -> tuple["futures.Future[Any]", Callable[[], Any]] | None:
        while True:
            try:
                return self._work.get(timeout=_IDLE_THREAD_S)
            except queue.Empty:
                with self._lock:
                    if self._num_idle > 0:
                        self._num_idle -= 1
                        return None
