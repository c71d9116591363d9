"""A client's end of `Jobs.Train` for tests: sends raw instructions, remembers all events."""

import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

import grpc
import numpy as np
import pytest

from fdt.v1 import blobs_pb2, job_pb2

# For every wait of a test.
LIMIT_S = 20.0

_opened: "list[TrainStream]" = []


@pytest.fixture(autouse=True)
def streams_end_with_their_test() -> Iterator[None]:
    """One that failed would leave its jobs open, and whoever shares the pool would wait for their workers."""
    first = len(_opened)
    yield
    while len(_opened) > first:
        _opened.pop().end()


class TrainStream:
    """One job."""

    def __init__(
        self,
        channel: grpc.Channel,
        num_workers: int,
        options: Mapping[str, str],
        mode: str = "sync",
        opening: bytes | None = None,
    ) -> None:
        self.seen: list[job_pb2.Event] = []
        self._serial = 0
        self._out: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._ended = self._is_closing = False
        open_job = job_pb2.OpenJob(mode=mode, num_workers=num_workers, script="toy.py", options=options)
        self.send_raw(job_pb2.Instruction(open=open_job).SerializeToString() if opening is None else opening)
        train = channel.stream_stream("/fdt.v1.Jobs/Train", response_deserializer=job_pb2.Event.FromString)
        self._call = train(self._requests(), timeout=10 * LIMIT_S)
        self._reader = threading.Thread(target=self._read, name="test-reader", daemon=True)
        self._reader.start()
        _opened.append(self)

    def _requests(self) -> Iterator[bytes]:
        while (raw := self._out.get()) is not None:
            yield raw

    def _read(self) -> None:
        try:
            for event in self._call:
                with self._changed:
                    self.seen.append(event)
                    self._changed.notify_all()
        except grpc.RpcError:
            pass
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._out.put(None)

    def send_raw(self, raw: bytes) -> None:
        self._out.put(raw)

    def _send(self, **kind: object) -> None:
        self.send_raw(job_pb2.Instruction(**kind).SerializeToString())

    def load(self, blob: blobs_pb2.BlobRef) -> None:
        self._send(load=job_pb2.LoadProgram(blob=blob))

    def bind(self, *arrays: job_pb2.Array) -> None:
        self._send(bind=job_pb2.BindData(arrays=arrays))

    def assign_blob(self, blob: blobs_pb2.BlobRef) -> None:
        state = job_pb2.State(payload=blobs_pb2.Payload(blob=blob))
        self._send(assign=job_pb2.AssignState(state=state))

    def run(self, batches: Sequence[Sequence[int]], results: bool = False) -> None:
        rows = [job_pb2.Batch(indices=np.array(batch, "<i8").tobytes()) for batch in batches]
        self._send(run=job_pb2.RunSteps(batches=rows, results=results))

    def run_blob(self, blob: blobs_pb2.BlobRef) -> None:
        """Runs a step whose row numbers are a blob."""
        self._send(run=job_pb2.RunSteps(batches=[job_pb2.Batch(blob=blob)]))

    def drain(self, what: "job_pb2.Drain.What" = job_pb2.Drain.WHAT_METRICS) -> job_pb2.Drained:
        self._serial += 1
        self._send(drain=job_pb2.Drain(what=what, serial=self._serial))
        return self._wait(lambda: [e for e in self.kinds("drained") if e.drained.serial == self._serial])[0].drained

    def close(self) -> job_pb2.Closed:
        """Returns the accounts of all processes, together."""
        self._is_closing = True
        self._send(close=job_pb2.CloseJob())
        self._wait(lambda: [e for e in self.kinds("closed") if not e.closed.remaining])
        closed = job_pb2.Closed()
        for event in self.kinds("closed"):
            closed.MergeFrom(event.closed)
        closed.workers.sort(key=lambda usage: usage.rank)
        closed.processes.sort(key=lambda process: process.rank)
        return closed

    def fetched(self, *blobs: blobs_pb2.BlobRef) -> None:
        self._send(fetched=job_pb2.Fetched(blobs=blobs))

    def show(self, **values: float) -> None:
        self._send(shown=job_pb2.Shown(values=values))

    def half_close(self) -> None:
        self._out.put(None)

    def cancel(self) -> None:
        self._call.cancel()

    def kinds(self, kind: str) -> list[job_pb2.Event]:
        return [event for event in self.seen if event.WhichOneof("kind") == kind]

    def wait(self, kind: str) -> job_pb2.Event:
        """Waits for the first event of a kind."""
        return self._wait(lambda: self.kinds(kind))[0]

    def wait_queued(self, position: int) -> list[job_pb2.Event]:
        return self._wait(lambda: [e for e in self.kinds("queued") if e.queued.position == position])

    def _wait(self, found: object) -> list[job_pb2.Event]:
        end_s = time.monotonic() + LIMIT_S
        with self._changed:
            while not (result := found()):  # type: ignore[operator]
                left_s = end_s - time.monotonic()
                assert left_s > 0 and not self._ended, f"it did not come; instead: {self.seen} {self._call}"
                self._changed.wait(left_s)
            return result

    def end(self) -> None:
        """Ends it, whatever became of it."""
        if self._is_closing:
            self._reader.join(LIMIT_S)
        self.cancel()
        self._reader.join(LIMIT_S)

    @property
    def ended(self) -> bool:
        return self._ended

    def wait_end(self) -> None:
        self._reader.join(LIMIT_S)
        assert self._ended

    def status(self) -> grpc.StatusCode:
        self.wait_end()
        return self._call.code()
