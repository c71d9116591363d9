"""Passes serialised messages between a job's client and its workers, and combines the workers' answers into one."""

import collections
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence, Sized

from fdt.base.limits import Limits
from fdt.errors import CapacityError, ProtocolError
from fdt.pool.access import Caller
from fdt.transport import wire
from fdt.transport.blobs import payloads_of
from fdt.transport.drained import Answers
from fdt.v1 import blobs_pb2, job_pb2, worker_pb2

# The fields of WorkerInstruction and WorkerEvent that hold an Instruction and an Event.
_INSTRUCTION_TAG = bytes((worker_pb2.WorkerInstruction.INSTRUCTION_FIELD_NUMBER << 3 | 2,))
# Bounds on answers with results or states that the client has not fetched: a client waits before it reaches them.
MAX_OUTBOUND = 8
MAX_OUTBOUND_BYTES = 1 << 30

_EVENT_FIELD = worker_pb2.WorkerEvent.EVENT_FIELD_NUMBER


class Room:
    """A shared bound on the bytes that several outboxes keep."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._kept_bytes = 0
        self._lock = threading.Lock()

    def take(self, num_bytes: int) -> bool:
        """Reserves bytes if they fit; returns whether they do."""
        with self._lock:
            fits = self._kept_bytes + num_bytes <= self.limit_bytes
            self._kept_bytes += num_bytes * fits
            return fits

    def give(self, num_bytes: int) -> None:
        """Frees bytes."""
        with self._lock:
            self._kept_bytes -= num_bytes


class Outbox:
    """The messages that a stream will send: a bounded queue that any thread may fill."""

    def __init__(
        self, limit_bytes: int, shared: Room | None = None, on_full: Callable[[str], None] | None = None
    ) -> None:
        """
        Args:
            limit_bytes: The most bytes of waiting messages; a single message may be larger.
            shared: The bound for all outboxes together.
            on_full: Called once, with the bound in words, when a message does not fit; all messages are then dropped.
        """
        self._limit_bytes, self._shared, self._on_full = limit_bytes, shared, on_full
        self._items: collections.deque[bytes] = collections.deque()
        self._num_bytes = 0
        self._closed = False
        self._changed = threading.Condition()

    def put(self, raw: bytes) -> None:
        """Adds a message; after `close` it is dropped."""
        with self._changed:
            if self._closed:
                return
            bound = self._bound(len(raw))
            if bound is None:
                self._items.append(raw)
                self._num_bytes += len(raw)
            else:
                self._clear()
                self._closed = True
            self._changed.notify_all()
        if bound is not None and self._on_full is not None:
            self._on_full(bound)

    def _bound(self, num_bytes: int) -> str | None:
        if self._items and self._num_bytes + num_bytes > self._limit_bytes:
            return f"{self._limit_bytes:,} bytes"
        if self._shared is not None and not self._shared.take(num_bytes):
            return f"{self._shared.limit_bytes:,} bytes with those of others"
        return None

    def close(self, at_once: bool = False) -> None:
        """Ends the stream after the waiting messages, or at once."""
        with self._changed:
            self._closed = True
            if at_once:
                self._clear()
            self._changed.notify_all()

    def wait_room(self) -> None:
        """Waits until half of the room is free, or the outbox is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._num_bytes <= self._limit_bytes // 2)

    def __iter__(self) -> Iterator[bytes]:
        """Yields messages until closed."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._items or self._closed)
                if not self._items:
                    return
                raw = self._items.popleft()
                self._took(len(raw))
                self._changed.notify_all()
            yield raw

    def _clear(self) -> None:
        self._items.clear()
        self._took(self._num_bytes)

    def _took(self, num_bytes: int) -> None:
        self._num_bytes -= num_bytes
        if self._shared is not None:
            self._shared.give(num_bytes)


def wrapped(raw: bytes) -> bytes:
    """Returns a serialised WorkerInstruction around a serialised Instruction."""
    return b"".join((_INSTRUCTION_TAG, wire.varint(len(raw)), raw))


def unwrapped(raw: bytes, event: job_pb2.Event) -> bytes:
    """Returns the serialised Event inside a serialised WorkerEvent."""
    inner = wire.only_field(raw, _EVENT_FIELD)
    return bytes(inner) if inner is not None else event.SerializeToString()


def blobs_of(event: job_pb2.Event) -> list[blobs_pb2.BlobRef]:
    """Returns the blobs that a worker's event names, which the worker has written."""
    payloads = (event.results.outputs, *payloads_of(event.drained.state), event.drained.outputs)
    return [payload.blob for payload in payloads if payload.HasField("blob")]


class JobRelay:
    """Connects the streams of one job's client and workers."""

    def __init__(self, job: str, caller: Caller, session: bytes, limits: Limits, unread: Room) -> None:
        """Begins without workers.

        Args:
            job: Its name.
            caller: The operator or person who opened it.
            session: The client's session (`job_pb2.OpenJob`), made unique among persons by `JobStreams.open`.
            limits: The pool's limits.
            unread: The bound on unread bytes of all clients together.
        """
        self.job, self.caller = job, caller
        self._limits = limits
        # Called when the client does not read; the servicer sets it.
        self.on_unread: Callable[[str], None] = lambda bound: None
        self.client = Outbox(limits.unread_bytes, unread, lambda bound: self.on_unread(bound))
        self.assigned = threading.Event()
        # The client's session, which may have had earlier jobs.
        self.session = session
        # Set when the client sent an invalid message: its stream ends with this error.
        self.malformed: ProtocolError | None = None
        self.steps = 0
        # The names of the processes to which the client may speak directly.
        self.processes: tuple[str, ...] = ()
        self._lock = threading.Lock()
        self._workers: tuple[Outbox, ...] = ()
        self._ended = False
        self._early: list[bytes] = []
        self._loaded: dict[int, int] = {}
        self._answers: dict[int, Answers] = {}
        self._num_closed = 0
        # By data set, how many workers have looked at its files, and what the first one lacks.
        self._bound: dict[int, tuple[int, str]] = {}
        # Serials of drains whose answers are snapshots.
        self._kept: set[int] = set()
        # Blobs of states that were sent to the workers: first in a list; from the next drain on under the drain's serial, since
        # the drain's answer shows that the workers have read them.
        self._inbound: list[blobs_pb2.BlobRef] = []
        self._arriving: dict[int, list[blobs_pb2.BlobRef]] = {}
        # Blobs that the client has not fetched yet, by digest, with the number of their answer.
        self._outbound: dict[bytes, tuple[blobs_pb2.BlobRef, int]] = {}
        self._answer_numbers = itertools.count()
        # Row numbers that each worker reads once: by digest, with the number of workers that have read them.
        self._reading: dict[bytes, tuple[blobs_pb2.BlobRef, int]] = {}
        # Pieces of a stream, by the number of their data set, and how many workers have released them.
        self._streaming: dict[int, list[blobs_pb2.BlobRef]] = {}
        self._released: dict[int, int] = {}

    def assign(self, workers: Sequence[Outbox]) -> None:
        """Connects the job's workers: passes on the instructions kept so far, and from now on each as it comes."""
        with self._lock:
            self._workers = tuple(workers)
            for message in self._early:
                self._send(message)
            self._early.clear()
        self.assigned.set()

    def end(self) -> None:
        """Ends the client's stream, and wakes threads that wait for workers."""
        self.client.close()
        with self._lock:
            self._ended = True
            self._early.clear()
        self.assigned.set()

    def tell(self, event: job_pb2.Event) -> None:
        """Sends the client an event of the pool's own."""
        self.client.put(event.SerializeToString())

    def instruct(self, raw: bytes) -> None:
        """Passes a serialised Instruction to all workers; keeps it until workers are assigned.

        Blocks while too many bytes are kept or unread by the workers, so that no more of the client's stream is read.
        """
        message = wrapped(raw)
        with self._lock:
            full = sum(map(len, self._early)) + len(message) > self._limits.early_bytes
        if full:
            self.assigned.wait()
        for outbox in self._workers:
            outbox.wait_room()
        with self._lock:
            if self._workers:
                self._send(message)
            elif not self._ended:
                self._early.append(message)

    def _send(self, message: bytes) -> None:
        for outbox in self._workers:
            outbox.put(message)

    def progress(self, rank: int, raw: bytes, event: job_pb2.Event) -> None:
        """Records rank 0's number of steps, and passes it on to the client."""
        if rank == 0:
            self.steps = event.progress.steps
            self.client.put(unwrapped(raw, event))

    def results(self, raw: bytes, event: job_pb2.Event) -> None:
        """Passes a step's outputs on to the client; only rank 0 sends them.

        Raises:
            CapacityError: The client does not fetch its results.
        """
        self.steps = max(self.steps, event.results.step + 1)
        self.outbound(blobs_of(event))
        self.client.put(unwrapped(raw, event))

    def loaded(self, event: job_pb2.Event) -> None:
        """Tells the client that a program is loaded, once all workers have reported it."""
        program = event.loaded.program
        with self._lock:
            if program not in self._loaded:
                raise ProtocolError(f"A worker loaded a program that was not sent to it. Received: program={program}")
            self._loaded[program] += 1
            complete = self._loaded[program] == len(self._workers)
            if complete:
                del self._loaded[program]
        if complete:
            self.tell(event)

    def bind_asked(self, data: int) -> None:
        """Records a data set whose files the workers are to look at."""
        with self._lock:
            self._need_room(self._bound, "data sets")
            self._bound[data] = 0, ""

    def bound(self, bound: job_pb2.Bound) -> None:
        """Tells the client whether all workers can read a data set's files, once all have answered."""
        with self._lock:
            if bound.data not in self._bound:
                raise ProtocolError(f"A worker has looked at what nobody asked for. Received: data={bound.data}")
            count, missing = self._bound.pop(bound.data)
            count, missing = count + 1, missing or bound.missing
            complete = count == len(self._workers)
            if not complete:
                self._bound[bound.data] = count, missing
        if complete:
            self.tell(job_pb2.Event(bound=job_pb2.Bound(data=bound.data, missing=missing)))

    def load_asked(self, program: int) -> None:
        """Records a program that was passed to the workers."""
        with self._lock:
            self._need_room(self._loaded, "programs")
            self._loaded[program] = 0

    def _need_room(self, pending: Sized, what: str) -> None:
        if len(pending) >= self._limits.pending:
            raise CapacityError(
                f"A job may have {self._limits.pending} {what} on their way to its workers at once. Wait for them."
            )

    def drained(self, rank: int, event: job_pb2.Event) -> job_pb2.Drained | None:
        """Records a worker's answer to a drain; after the last one, answers the client for all.

        Returns:
            The answer that was sent to the client; None while workers' answers are missing.
        """
        serial = event.drained.serial
        with self._lock:
            if serial not in self._arriving:
                raise ProtocolError(f"A worker answered a drain that is not pending. Received: serial={serial}")
            given = self._answers.setdefault(serial, Answers())
            given.add(rank, event.drained)
            if rank == 0:
                self.steps = max(self.steps, event.drained.steps)
            if given.count < len(self._workers) or given.drained is None:
                return None
            del self._answers[serial]
        answer = given.event()
        if serial not in self._kept:
            self.outbound(blobs_of(answer))
        self._kept.discard(serial)
        self.tell(answer)
        return answer.drained

    def closed(self, event: job_pb2.Event, host: str) -> None:
        """Passes a process's last account on to the client, with the number of accounts still missing.

        Args:
            event: The process's `closed` event.
            host: The label of its host; "" for the pool's own machine.
        """
        for process in event.closed.processes:
            process.host = host
        with self._lock:
            self._num_closed += 1
            event.closed.remaining = max(0, len(self._workers) - self._num_closed)
            # In this order: the client reads no further than the last one.
            self.tell(event)

    # ---- blobs used only once: large states, results, row numbers, pieces of a stream --------------------------------

    def assigned_blobs(self, refs: Sequence[blobs_pb2.BlobRef]) -> None:
        """Records the blobs of a state that was passed to the workers."""
        if refs:
            with self._lock:
                self._need_room(self._inbound, "states")
                self._inbound.extend(refs)

    def keeps(self, event: job_pb2.Event) -> bool:
        """Whether an event is a snapshot, whose blobs the pool keeps for the session."""
        return event.HasField("drained") and event.drained.serial in self._kept

    def drain_asked(self, serial: int, keep: bool) -> None:
        """Records a drain; its answer will show that the workers have read all states sent before it."""
        with self._lock:
            if keep:
                self._kept.add(serial)
            self._need_room(self._arriving, "drains")
            if serial in self._arriving:
                raise ProtocolError(f"A drain with this serial is still pending. Received: serial={serial}")
            self._arriving[serial], self._inbound = self._inbound, []

    def served_blobs(self, drained: job_pb2.Drained) -> list[blobs_pb2.BlobRef]:
        """Returns the blobs of states that are no longer needed after a drain's answer."""
        with self._lock:
            served = self._arriving.pop(drained.serial, [])
            kept = {ref.digest for ref in self._passing()}
        return [ref for ref in served if ref.digest not in kept]

    def outbound(self, refs: Sequence[blobs_pb2.BlobRef]) -> None:
        """Records blobs that the client is to fetch.

        Raises:
            CapacityError: Too many blobs wait for the client to fetch them.
        """
        with self._lock:
            number = next(self._answer_numbers)
            self._outbound.update({ref.digest: (ref, number) for ref in refs})
            size_bytes = sum(ref.size_bytes for ref, _ in self._outbound.values())
            num_answers = len({answer for _, answer in self._outbound.values()})
            if num_answers > MAX_OUTBOUND and size_bytes > MAX_OUTBOUND_BYTES:
                raise CapacityError(
                    f"The client does not fetch its results: {num_answers} of them, {size_bytes:,} bytes, wait in the "
                    f"pool's store. Expected: at most {MAX_OUTBOUND} of them, or {MAX_OUTBOUND_BYTES:,} bytes."
                )

    def fetched(self, refs: Sequence[blobs_pb2.BlobRef]) -> list[blobs_pb2.BlobRef]:
        """Records that the client has fetched blobs; returns those that were waiting for it."""
        with self._lock:
            return [self._outbound.pop(ref.digest)[0] for ref in refs if ref.digest in self._outbound]

    def reading(self, refs: Sequence[blobs_pb2.BlobRef]) -> None:
        """Records row numbers that were passed to the workers."""
        with self._lock:
            self._need_room(self._reading, "row numbers")
            self._reading.update({ref.digest: (ref, 0) for ref in refs})

    def read(self, refs: Sequence[blobs_pb2.BlobRef]) -> list[blobs_pb2.BlobRef]:
        """Records that one more worker has read blobs; returns the blobs that all workers have read."""
        done = []
        with self._lock:
            for ref in refs:
                named, count = self._reading.pop(ref.digest, (ref, -1))
                if count + 1 == len(self._workers):
                    done.append(named)
                elif count >= 0:
                    self._reading[ref.digest] = named, count + 1
        return done

    def streamed(self, data: int, refs: Sequence[blobs_pb2.BlobRef]) -> None:
        """Records a piece of a stream."""
        with self._lock:
            self._need_room(self._streaming, "pieces of a stream")
            self._streaming[data] = list({ref.digest: ref for ref in refs}.values())

    def released(self, data: int) -> list[blobs_pb2.BlobRef]:
        """Records that a worker has released a piece; returns its blobs once all workers have."""
        with self._lock:
            if data not in self._streaming:
                return []
            self._released[data] = self._released.get(data, 0) + 1
            if self._released[data] < len(self._workers):
                return []
            del self._released[data]
            return self._streaming.pop(data)

    def passing_blobs(self) -> list[blobs_pb2.BlobRef]:
        """Returns the one-time blobs that workers or the client have not read yet."""
        with self._lock:
            return list(self._passing())

    def _passing(self) -> Iterator[blobs_pb2.BlobRef]:
        """Yields what `passing_blobs` returns; its caller has the lock."""
        yield from self._inbound
        for refs in (*self._arriving.values(), *self._streaming.values()):
            yield from refs
        for ref, _ in (*self._reading.values(), *self._outbound.values()):
            yield ref
