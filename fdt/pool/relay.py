"""What passes between a job's client and its workers, as it is: raw messages in queues, answers gathered."""

import queue
import threading
from collections.abc import Iterator, Sequence

from fdt import wire
from fdt.errors import ProtocolError
from protos import blobs_pb2, job_pb2, worker_pb2

# Fields of WorkerInstruction and WorkerEvent in which instructions and events travel.
_INSTRUCTION_TAG = bytes((worker_pb2.WorkerInstruction.INSTRUCTION_FIELD_NUMBER << 3 | 2,))
# A client may ask for further states before it has fetched the last.
_MAX_OUTBOUND = 4

_EVENT_FIELD = worker_pb2.WorkerEvent.EVENT_FIELD_NUMBER


class Outbox:
    """What a stream will send, put there by any thread."""

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def put(self, raw: bytes) -> None:
        """Adds a message; after `close` it is lost."""
        self._items.put(raw)

    def close(self) -> None:
        """Ends the stream after what is there."""
        self._items.put(None)

    def __iter__(self) -> Iterator[bytes]:
        """Yields messages until closed."""
        while (item := self._items.get()) is not None:
            yield item


def wrapped(raw: bytes) -> bytes:
    """Returns a serialised WorkerInstruction around a serialised Instruction."""
    return b"".join((_INSTRUCTION_TAG, wire.varint(len(raw)), raw))


def unwrapped(raw: bytes, event: job_pb2.Event) -> bytes:
    """Returns the serialised Event inside a serialised WorkerEvent."""
    inner = wire.only_field(raw, _EVENT_FIELD)
    return bytes(inner) if inner is not None else event.SerializeToString()


class JobRelay:
    """One job's streams."""

    def __init__(self, job: str) -> None:
        self.job = job
        self.client = Outbox()
        self.assigned = threading.Event()
        # Set when the client sent what makes no sense: its stream ends with that status.
        self.malformed: ProtocolError | None = None
        self.steps = 0
        self._lock = threading.Lock()
        self._workers: tuple[Outbox, ...] = ()
        self._early: list[bytes] = []
        self._loaded: dict[int, int] = {}
        self._drained: dict[int, tuple[job_pb2.Drained | None, list[job_pb2.WorkerUsage], int]] = {}
        self._usage: list[job_pb2.WorkerUsage] = []
        self._processes: list[job_pb2.ProcessUsage] = []
        self._num_closed = 0
        # States on their way: to the workers, by the drain that tells when they have arrived; and to the client.
        self._inbound: list[blobs_pb2.BlobRef] = []
        self._arriving: dict[int, list[blobs_pb2.BlobRef]] = {}
        self._outbound: list[blobs_pb2.BlobRef] = []
        # Pieces of a stream, by the number of their data set, and how many workers need them no more.
        self._streaming: dict[int, list[blobs_pb2.BlobRef]] = {}
        self._released: dict[int, int] = {}

    def assign(self, workers: Sequence[Outbox]) -> None:
        """Passes on what has come so far, and from now on all instructions as they come."""
        with self._lock:
            self._workers = tuple(workers)
            for message in self._early:
                self._send(message)
            self._early.clear()
        self.assigned.set()

    def end(self) -> None:
        """Ends the client's stream, and lets nobody wait for workers any more."""
        self.client.close()
        self.assigned.set()

    def tell(self, event: job_pb2.Event) -> None:
        """Sends the client an event of the pool's own."""
        self.client.put(event.SerializeToString())

    def instruct(self, raw: bytes) -> None:
        """Passes a serialised Instruction to all workers; keeps it while there are none."""
        message = wrapped(raw)
        with self._lock:
            if self._workers:
                self._send(message)
            else:
                self._early.append(message)

    def _send(self, message: bytes) -> None:
        for outbox in self._workers:
            outbox.put(message)

    def progress(self, rank: int, raw: bytes, event: job_pb2.Event) -> None:
        """Passes on what rank 0 has counted."""
        if rank == 0:
            self.steps = event.progress.steps
            self.client.put(unwrapped(raw, event))

    def results(self, raw: bytes, event: job_pb2.Event) -> None:
        """Passes on a step's outputs; only rank 0 sends them."""
        self.client.put(unwrapped(raw, event))

    def loaded(self, event: job_pb2.Event) -> None:
        """Tells the client once all workers have said it."""
        program = event.loaded.program
        with self._lock:
            self._loaded[program] = self._loaded.get(program, 0) + 1
            complete = self._loaded[program] == len(self._workers)
        if complete:
            self.tell(event)

    def drained(self, rank: int, event: job_pb2.Event) -> job_pb2.Drained | None:
        """Gathers one answer from each worker: the state from rank 0, the accounts from all.

        Returns:
            What the client was told, once it was.
        """
        serial = event.drained.serial
        with self._lock:
            drained, usage, count = self._drained.pop(serial, (None, [], 0))
            usage.extend(event.drained.workers)
            drained, count = (event.drained if rank == 0 else drained), count + 1
            if count < len(self._workers) or drained is None:
                self._drained[serial] = drained, usage, count
                return None
        answer = job_pb2.Event(drained=drained)
        del answer.drained.workers[:]
        answer.drained.workers.extend(sorted(usage, key=lambda worker: worker.rank))
        self.steps = answer.drained.steps
        self.tell(answer)
        return answer.drained

    def closed(self, event: job_pb2.Event, host: str) -> None:
        """Gathers the workers' last accounts, and tells the client when they are complete.

        Args:
            event: Of one process.
            host: What a person calls its host; "" for the pool's own machine.
        """
        for process in event.closed.processes:
            process.host = host
        with self._lock:
            self._usage.extend(event.closed.workers)
            self._processes.extend(event.closed.processes)
            self._num_closed += 1
            complete = self._num_closed == len(self._workers)
        if complete:
            usage = sorted(self._usage, key=lambda worker: worker.rank)
            processes = sorted(self._processes, key=lambda process: process.rank)
            self.tell(job_pb2.Event(closed=job_pb2.Closed(workers=usage, processes=processes)))

    # ---- blobs that serve once: large states ------------------------------------------------------------------------

    def assigned_blob(self, ref: blobs_pb2.BlobRef) -> None:
        """Takes note of a state that was passed to the workers."""
        self._inbound.append(ref)

    def drain_asked(self, serial: int) -> None:
        """Takes note that, once this is answered, the workers have taken in all states up to here."""
        self._arriving[serial], self._inbound = self._inbound, []

    def served_blobs(self, drained: job_pb2.Drained) -> list[blobs_pb2.BlobRef]:
        """Returns the blobs that nobody needs any more after an answer."""
        served = self._arriving.pop(drained.serial, [])
        if drained.state.payload.HasField("blob"):
            self._outbound.append(drained.state.payload.blob)
            served = served + self._outbound[:-_MAX_OUTBOUND]
            del self._outbound[:-_MAX_OUTBOUND]
        kept = {ref.digest for ref in self.passing_blobs()}
        return [ref for ref in served if ref.digest not in kept]

    def streamed(self, data: int, refs: Sequence[blobs_pb2.BlobRef]) -> None:
        """Takes note of a piece of a stream."""
        with self._lock:
            self._streaming[data] = list({ref.digest: ref for ref in refs}.values())

    def released(self, data: int) -> list[blobs_pb2.BlobRef]:
        """Returns the blobs of a piece once no worker needs it any more."""
        with self._lock:
            self._released[data] = self._released.get(data, 0) + 1
            if self._released[data] < len(self._workers):
                return []
            del self._released[data]
            return self._streaming.pop(data, [])

    def passing_blobs(self) -> list[blobs_pb2.BlobRef]:
        """Returns the blobs that are on their way now."""
        states = [*self._inbound, *(ref for refs in self._arriving.values() for ref in refs), *self._outbound]
        with self._lock:
            return states + [ref for refs in self._streaming.values() for ref in refs]
