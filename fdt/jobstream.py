"""The client's side of the job stream: instructions out, events in, one reader thread."""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from weakref import WeakValueDictionary

import grpc

from fdt import rpc
from fdt.blobs import BlobClient, Buffer, SharedStore
from fdt.config import Timing
from fdt.errors import FdtError, JobError, WorkerError, named
from fdt.report import say
from protos import blobs_pb2, job_pb2, job_pb2_grpc


class Result:
    """The outputs of one step, when they have come."""

    def __init__(self) -> None:
        self.outputs: Buffer | None = None


class JobStream:
    """One open `Jobs.Train` call.

    Every method that waits raises the job's error as soon as it is known: the pool hears the workers' heartbeats, and the
    channel's keepalive notices a pool that is gone.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        address: str,
        opening: job_pb2.OpenJob,
        timing: Timing,
        blobs: BlobClient | SharedStore,
    ):
        self._timing = timing
        self._blobs = blobs
        self._address = address
        self._outgoing: queue.SimpleQueue[job_pb2.Instruction | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._error: FdtError | None = None
        self._ended = False
        self._drained: dict[int, job_pb2.Drained] = {}
        # Those that the script still has.
        self._results: WeakValueDictionary[int, Result] = WeakValueDictionary()
        self._closed = False
        # What the job's processes used, once it has ended well.
        self.processes: list[job_pb2.ProcessUsage] = []
        self._serial = 0
        self._started = False
        self._loads = 0
        self.steps_done = 0
        # The size of the largest of the steps' results, and what was fetched in all.
        self.result_bytes = 0
        self.bytes_fetched = 0
        # When the first and the newest of the steps since `begin_fit` were heard of, and how many there were then.
        self.first: tuple[float, int] | None = None
        self.newest: tuple[float, int] | None = None
        self.send(job_pb2.Instruction(open=opening))
        self._call = job_pb2_grpc.JobsStub(channel).Train(self._instructions(), wait_for_ready=True)
        self._reader = threading.Thread(target=self._read, name="fdt-job-events", daemon=True)
        self._reader.start()

    def send(self, instruction: job_pb2.Instruction) -> None:
        """Queues an instruction.

        Raises:
            FdtError: The job has failed.
        """
        self.check()
        if instruction.WhichOneof("kind") == "load":
            self._loads += 1
        self._outgoing.put(instruction)

    def check(self) -> None:
        """Raises the job's error, if it has one."""
        if self._error is not None:
            raise self._error

    @property
    def failed(self) -> bool:
        """Whether the job has ended of its own."""
        return self._error is not None or self._ended

    def wait_steps(self, steps: int) -> None:
        """Waits until so many steps have finished since the job began."""
        if self.steps_done < steps:
            self._wait(lambda: self.steps_done >= steps, f"step {steps}")

    def drain(self, program: int, what: "job_pb2.Drain.What", variables: Sequence[int] = ()) -> int:
        """Asks for state; returns a serial number for `wait_drained`."""
        self._serial += 1
        drain = job_pb2.Drain(program=program, what=what, serial=self._serial, variables=variables)
        self.send(job_pb2.Instruction(drain=drain))
        return self._serial

    def has_drained(self, serial: int) -> bool:
        """Whether the answer has come."""
        self.check()
        return serial in self._drained

    def wait_drained(self, serial: int) -> job_pb2.Drained:
        """Waits for the answer."""
        self._wait(lambda: serial in self._drained, "the workers' state")
        return self._drained.pop(serial)

    def expect(self, step: int) -> "Result":
        """Returns the place for a step's outputs, whose number is counted from the job's beginning."""
        result = self._results[step] = Result()
        return result

    def content(self, payload: blobs_pb2.Payload) -> Buffer:
        """Returns the bytes of a payload, and has the pool delete its blob."""
        if payload.WhichOneof("content") != "blob":
            content: Buffer = payload.inline
        else:
            content = self._blobs.download(payload.blob)
            self._let_go(payload)
        with self._changed:
            self.bytes_fetched += len(content)
        return content

    def _let_go(self, payload: blobs_pb2.Payload) -> None:
        if payload.WhichOneof("content") == "blob":
            self._outgoing.put(job_pb2.Instruction(fetched=job_pb2.Fetched(blobs=[payload.blob])))

    def wait_result(self, result: "Result") -> Buffer:
        """Waits for a step's outputs."""
        self._wait(lambda: result.outputs is not None, "a step's results")
        assert result.outputs is not None
        return result.outputs

    def close(self, exit_status: int = 0) -> None:
        """Says goodbye; a job that has not started or has failed is only dropped.

        Args:
            exit_status: With what the script ends, for the pool's list of jobs.
        """
        if self._error is None and self._started:
            try:
                self.send(job_pb2.Instruction(close=job_pb2.CloseJob(exit_status=exit_status & 0xFF)))
                self._wait(lambda: self._closed or self._ended, "the end of the job", self._timing.stop_s)
            except FdtError as error:
                say(f"the job did not end cleanly: {error}")
        self._outgoing.put(None)
        self._call.cancel()
        self._reader.join(self._timing.stop_s)
        # Its last reference: not left to the end of the interpreter (see `rpc.from_rpc_error`).
        del self._call

    def _wait(self, condition: Callable[[], bool], what: str, limit_s: float | None = None) -> None:
        deadline = None if limit_s is None else time.monotonic() + limit_s
        with self._changed:
            while not condition():
                self.check()
                if self._ended:
                    raise JobError(f"The pool at {self._address} ended the job before {what} had come.")
                # Waking now and then lets Ctrl-C through.
                self._changed.wait(1.0)
                if deadline is not None and time.monotonic() > deadline:
                    raise WorkerError(
                        f"Waited {limit_s:.0f} s for {what}; nothing came. See `fdt jobs` and `fdt logs`."
                    )

    def _instructions(self) -> Iterator[job_pb2.Instruction]:
        while (instruction := self._outgoing.get()) is not None:
            yield instruction

    def _read(self) -> None:
        error: FdtError | None = None
        try:
            for event in self._call:
                self._handle(event)
        except grpc.RpcError as failure:
            error = rpc.from_rpc_error(failure, self._address)
        except FdtError as failure:
            error = failure
        with self._changed:
            self._error = self._error or error
            self._ended = True
            self._changed.notify_all()
        self._outgoing.put(None)

    def _handle(self, event: job_pb2.Event) -> None:
        kind = event.WhichOneof("kind")
        if kind == "queued":
            say(f"waiting for workers: position {event.queued.position} in the queue ({event.queued.reason})")
        # Before the step counts as done: so there are never more of them than steps that the client may be ahead.
        outputs = self._outputs(event.results) if kind == "results" else None
        with self._changed:
            # Workers answer as soon as they have met; the pool's word that they have may come behind their first.
            self._started = self._started or kind not in ("queued", "failed")
            if kind == "progress":
                self._count(event.progress.steps)
            elif kind == "results":
                self._count(event.results.step + 1)
                result = self._results.get(event.results.step)
                if result is not None:
                    result.outputs = outputs
            elif kind == "drained":
                self._count(event.drained.steps)
                self._drained[event.drained.serial] = event.drained
            elif kind == "closed":
                self.processes = sorted([*self.processes, *event.closed.processes], key=lambda process: process.rank)
                self._closed = event.closed.remaining == 0
            elif kind == "failed":
                self._error = self._error or named(event.failed.error, event.failed.message)
            self._changed.notify_all()

    def _outputs(self, results: job_pb2.Results) -> Buffer | None:
        """Fetches a step's outputs, if the script still has what they are for."""
        payload = results.outputs
        self.result_bytes = max(self.result_bytes, payload.blob.size_bytes)
        if results.step not in self._results:
            self._let_go(payload)
            return None
        # In memory, as the script would have them: a map would keep the disk's blocks.
        return bytes(self.content(payload))

    def _count(self, steps: int) -> None:
        if steps > self.steps_done:
            self.newest = time.monotonic(), steps
            self.first = self.first or self.newest
        self.steps_done = max(self.steps_done, steps)
