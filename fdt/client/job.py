"""Sends a run's steps, data and variables to the workers of its job."""

import collections
import contextlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import grpc

from fdt.base.config import RunConfig
from fdt.base.progress_line import WAITING, of_bytes
from fdt.base.versions import versions
from fdt.client.answers import Answer, Drain, StepResult
from fdt.client.chunk import Chunk
from fdt.client.faults import Fault
from fdt.client.flow_control import FlowControl
from fdt.client.job_stream import JobStream
from fdt.client.programs import Programs
from fdt.client.step_times import StepTimes
from fdt.errors import FdtError
from fdt.transport.blob_client import BlobClient, SharedStore
from fdt.transport.blobs import INLINE_BYTES, Buffer, chunked, flat, named_by, one_time, payloads_of, reference
from fdt.v1 import blobs_pb2, job_pb2, program_pb2

# Row numbers up to this size travel together, in one message.
ROWS_BYTES = 1 << 20
# Streamed batches: the bytes and the time for which they are gathered before they are sent; and the bytes that may wait for
# the workers.
_CHUNK_BYTES = 8 << 20
_CHUNK_S = 0.02
_STREAM_BYTES = 64 << 20
# Bytes of steps' results that may wait for the client.
_RESULTS_BYTES = 256 << 20
# States up to this size may come past the pool.
_SMALL_BYTES = 32 << 10
# Seconds between messages with numbers for the pool's page; the count of numbers in one, and the length of their names.
_SHOWN_S, _SHOWN_NAMES, _SHOWN_NAME = 0.5, 8, 64


class Job:
    """The run's workers, as the script's step sees them."""

    def __init__(
        self,
        channel: grpc.Channel,
        address: str,
        config: RunConfig,
        blobs: BlobClient | SharedStore,
        workers: range | None = None,
    ):
        self._blobs = blobs
        self._programs = Programs()
        self._data: dict[tuple[bytes, ...], int] = {}
        # The shapes of the arrays of each data set.
        self._shapes: set[tuple[bytes, ...]] = set()
        self._uploads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="fdt-upload")
        self.bytes_to_pool = 0
        opening = job_pb2.OpenJob(
            mode=config.mode,
            num_workers=config.num_workers,
            script=config.script,
            versions=versions(),
            options=config.options,
        )
        self._stream = JobStream(channel, address, opening, config.timing, blobs, workers)
        most = workers[-1] if workers else config.num_workers
        # Synchronous workers make each step together.
        self._flow = FlowControl(config.timing.run_ahead_s, most if config.mode == "async" else 1)
        # Steps that have not been sent yet: on bound arrays (row numbers), or on batches of their own.
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._target = (0, 0, False)
        self._chunk = Chunk()
        self._chunk_target = (0, False)
        self._flushed_s = self._shown_s = 0.0
        # For each unfinished chunk, and each batch of large row numbers: the number of steps after which the workers have
        # finished it, and its bytes.
        self._streaming: collections.deque[tuple[int, int]] = collections.deque()
        self._num_data = 0
        # Synchronous workers may hold their shares of a variable alone.
        self._num_parts = config.num_workers if config.mode == "sync" else 1

    @property
    def num_steps(self) -> int:
        """The number of steps requested since the beginning."""
        return self._flow.sent + len(self._waiting) + len(self._chunk)

    def leave_out_failed_step(self) -> None:
        """Removes a failed step, and all steps requested after it, from the job; see `StepError`."""
        before = self._stream.leave_out_failed_step()
        if before is not None:
            self._flow.sent = before
            self._waiting, self._waiting_bytes, self._chunk = [], 0, Chunk()
            self._streaming.clear()

    def wait(self) -> None:
        """Waits until all requested steps have been made."""
        self._flush()
        self._stream.wait_steps(self._flow.sent)

    def load(self, program: program_pb2.StepProgram, user: object) -> int:
        """Sends a program unless the workers have it; returns its number.

        Args:
            program: The program.
            user: The workers keep the program as long as this object lives.
        """
        content = program.SerializeToString(deterministic=True)
        ref = reference(content)
        number = self._programs.find(ref.digest)
        if number is None:
            # Steps that wait to be sent may use a program that is forgotten below.
            self._flush()
            for unused in self._programs.unused():
                self._stream.send(job_pb2.Instruction(forget=job_pb2.ForgetProgram(program=unused)))
            self._upload([(ref, content)])
            number = self._programs.add(ref.digest, program)
            self._stream.send(job_pb2.Instruction(load=job_pb2.LoadProgram(program=number, blob=ref)), [[content]])
        self._programs.use(number, user)
        return number

    @property
    def step_times(self) -> StepTimes:
        """When the job's steps end."""
        return self._stream.step_times

    @contextlib.contextmanager
    def uncounted(self) -> Iterator[None]:
        """Leaves the steps of a context out of `step_times`; the time that they take is time between epochs."""
        before, self.step_times.is_counting = self.num_steps, False
        try:
            yield
        finally:
            self.step_times.is_counting = True
            self.step_times.leave_out(self.num_steps - before)

    def bind_later(self, arrays: Sequence[Any], specs: Sequence[program_pb2.Tensor]) -> "Future[int]":
        """Like `bind`, in a thread: hashing and sending need little of the interpreter."""
        return self._uploads.submit(self.bind, arrays, specs)

    def bind(self, arrays: Sequence[Any], specs: Sequence[program_pb2.Tensor]) -> int:
        """Sends the arrays that the pool does not have; returns the number of the data set.

        Args:
            arrays: The bytes of C-contiguous arrays [num_samples, ...].
            specs: Their descriptions, full shapes included.
        """
        refs, key = _named(arrays, specs)
        if key not in self._data:
            self._shapes.add(_shapes_of(specs))
            self._upload(list(zip(refs, arrays, strict=True)))
            self._data[key] = number = self._new_data()
            described = [job_pb2.Array(tensor=s, blob=r) for s, r in zip(specs, refs, strict=True)]
            bind = job_pb2.BindData(data=number, arrays=described)
            self._stream.send(job_pb2.Instruction(bind=bind), [[array] for array in arrays])
        return self._data[key]

    def has(self, arrays: Sequence[Any], specs: Sequence[program_pb2.Tensor]) -> bool:
        """Returns whether arrays have been sent; see `bind`. Their bytes are read only if arrays of their shapes have."""
        return _shapes_of(specs) in self._shapes and _named(arrays, specs)[1] in self._data

    def bind_rows(self, bind: job_pb2.BindData, contents: Sequence[Any]) -> tuple[int, str]:
        """Sends what rows are made of that workers read from files, and waits until they have looked at the files.

        Args:
            bind: The instruction, without its number and the names of its blobs.
            contents: The bytes of the blobs, in the order of `named_by`.

        Returns:
            The number of the data set; and which file a worker cannot read, and why, or "".
        """
        with WAITING.doing("reading the names of files"):
            refs = [reference(content) for content in contents]
        for named, ref in zip(named_by(bind), refs, strict=True):
            named.CopyFrom(ref)
        key = (b"rows", bind.SerializeToString(deterministic=True))
        if key not in self._data:
            self._upload(list(zip(refs, contents, strict=True)))
            bind.data = self._data[key] = self._new_data()
            self._stream.send(job_pb2.Instruction(bind=bind), [[content] for content in contents])
        return self._data[key], self._stream.missing(self._data[key])

    def assign(self, program: int, indices: Sequence[int], values: Sequence[Any]) -> None:
        """Sets variables on all workers.

        Args:
            program: The program's number.
            indices: Indices of the variables.
            values: Their values, arrays, which must not change.
        """
        if not indices:
            return
        # It needs NumPy, which is imported after the script has set it up.
        from fdt.program.packing import cut_state

        self._flush()
        state, packed = cut_state(dict(zip(indices, values, strict=True)), self._num_parts)
        contents = []
        for payload, pieces in zip(payloads_of(state), packed, strict=True):
            payload.CopyFrom(self._payload(pieces))
            if payload.HasField("blob"):
                contents.append(pieces)
        assign = job_pb2.AssignState(program=program, state=state)
        self._stream.send(job_pb2.Instruction(assign=assign), contents, is_small=not contents, more_follows=True)

    def run(self, program: int, data: int, indices: bytes, results: bool = False) -> StepResult | None:
        """Runs one step on one of the script's batches, later; waits while the workers are too far behind.

        Args:
            program: Its number.
            data: Number of the data set.
            indices: Row numbers, little-endian int64.
            results: Whether the step's outputs are wanted.

        Returns:
            The outputs, if they are wanted.
        """
        if self._chunk or self._target != (program, data, results):
            self._flush()
        self._target = (program, data, results)
        result = self._expected(self._flow.sent + len(self._waiting)) if results else None
        self._waiting.append(indices)
        self._waiting_bytes += len(indices)
        outstanding = self._flow.sent - self.step_times.done
        enough = len(self._waiting) >= self._flow.chunk or self._waiting_bytes >= ROWS_BYTES
        if enough or outstanding <= self._flow.chunk:
            self._flush()
            self._stream.wait_steps(max(self._flow.sent - self._most_ahead(), self._steps_in_the_way()))
        return result

    def feed(
        self, program: int, arrays: Sequence[Any], specs: Sequence[program_pb2.Tensor], results: bool = False
    ) -> StepResult | None:
        """Runs one step, later, on a batch that is sent with it; waits while the workers are too far behind.

        Args:
            program: Its number.
            arrays: The bytes of C-contiguous arrays [rows, ...], one for each input; they must stay as they are until the
                next `request`.
            specs: Their descriptions, full shapes included.
            results: Whether the step's outputs are wanted.

        Returns:
            The outputs, if they are wanted.
        """
        target = (program, results)
        if self._waiting or target != self._chunk_target:
            self._flush()
        self._chunk_target = target
        number = self._flow.sent + len(self._chunk)
        result = self._expected(number) if results else None
        self._chunk.add(arrays, specs)
        gathered_s = time.monotonic() - self._flushed_s
        limit = self._most_ahead()
        if self._chunk.num_bytes >= _CHUNK_BYTES or gathered_s >= _CHUNK_S or len(self._chunk) >= limit:
            self._flush()
            self._stream.wait_steps(max(self._flow.sent - limit, self._steps_in_the_way()))
        return result

    def _most_ahead(self) -> int:
        """Returns how many steps may be unfinished, limited also by the size of their results."""
        return min(self._flow.limit, max(2, _RESULTS_BYTES // max(1, self._stream.result_bytes)))

    def _steps_in_the_way(self) -> int:
        """Returns the number of steps that must have finished before more bytes may be sent."""
        while self._streaming and self._streaming[0][0] <= self.step_times.done:
            self._streaming.popleft()
        excess = sum(num_bytes for _, num_bytes in self._streaming) - _STREAM_BYTES
        steps = 0
        # The newest item may be of any size.
        for finished, num_bytes in list(self._streaming)[:-1]:
            if excess <= 0:
                break
            steps, excess = finished, excess - num_bytes
        return steps

    def _new_data(self) -> int:
        self._num_data += 1
        return self._num_data

    def _flush(self) -> None:
        if self._waiting:
            program, data, results = self._target
            batches, self._waiting, self._waiting_bytes = self._waiting, [], 0
            self._run(program, data, batches, results)
        if self._chunk:
            chunk, self._chunk = self._chunk, Chunk()
            self._send(chunk)
        self._flushed_s = time.monotonic()
        self._flow.observe(self.step_times.done)
        self._stream.keep_up()

    def _run(self, program: int, data: int, batches: Iterable[bytes], results: bool) -> None:
        """Sends steps, in as many messages as their row numbers take.

        Args:
            program: Its number.
            data: Number of the data set.
            batches: Row numbers of each, little-endian int64.
            results: Whether the steps' outputs are wanted.
        """
        for part in gathered(batches, ROWS_BYTES):
            rows = [self._batch(indices) for indices in part]
            self._flow.sent += len(rows)
            run = job_pb2.RunSteps(program=program, data=data, batches=rows, results=results)
            large = [[indices] for indices, batch in zip(part, rows, strict=True) if batch.HasField("blob")]
            self._stream.send(job_pb2.Instruction(run=run), large, is_small=not large)

    def _batch(self, indices: bytes) -> job_pb2.Batch:
        if len(indices) <= ROWS_BYTES:
            return job_pb2.Batch(indices=indices)
        blob = one_time(len(indices))
        self._sent(lambda: self._blobs.send(blob, [indices]))
        self._streaming.append((self._flow.sent + 1, len(indices)))
        return job_pb2.Batch(blob=blob)

    def _send(self, chunk: Chunk) -> None:
        program, results = self._chunk_target
        run = job_pb2.RunSteps(program=program, data=self._new_data(), results=results, batches=chunk.batches())
        contents = []
        if chunk.is_small:
            run.chunk.CopyFrom(chunk.inside())
            self.bytes_to_pool += chunk.num_bytes
        else:
            blob, pieces = one_time(chunk.size_bytes()), chunk.kept_pieces()
            self._sent(lambda: self._blobs.send(blob, pieces))
            run.chunk.CopyFrom(chunk.within(blob))
            contents.append(pieces)
        self._flow.sent += len(chunk)
        self._stream.send(job_pb2.Instruction(run=run), contents, is_small=not contents)
        self._streaming.append((self._flow.sent, chunk.num_bytes))

    @property
    def ahead(self) -> int:
        """How many steps the client may be ahead of the workers."""
        return self._flow.limit

    @property
    def failed(self) -> bool:
        """Whether the job has ended or failed."""
        return self._stream.failed

    @property
    def faults(self) -> list[Fault]:
        """The faults that the job has survived."""
        return self._stream.faults.survived

    @property
    def usage(self) -> list[job_pb2.WorkerUsage]:
        """What each worker did since the job began, as of the last complete drain."""
        return self._stream.usage

    def move(self, program: int, variables: Sequence[int], source: int, source_variables: Sequence[int]) -> None:
        """Copies, on all workers, variables of another program to as many variables of this one."""
        self._flush()
        move = job_pb2.MoveState(program=program, variables=variables, source=source, source_variables=source_variables)
        self._stream.send(job_pb2.Instruction(move=move), is_small=True, more_follows=True)

    def is_small(self, program: int, variables: Sequence[int] = ()) -> bool:
        """Whether variables of a program, or, if none are named, its metrics and outputs, come as fast as one value does."""
        return self._programs.state_bytes(program, variables) <= _SMALL_BYTES

    def request(self, program: int, what: "job_pb2.Drain.What", variables: Sequence[int] = ()) -> Drain:
        """Requests state as it is after all steps so far; with `variables`, of WHAT_ALL these variables only."""
        self._flush()
        # All state of a program is an account, too, of which the pool is told.
        is_part = bool(variables) or what != job_pb2.Drain.WHAT_ALL
        is_small = is_part and self.is_small(program, variables)
        return Drain(self._stream, self._stream.drain(program, what, variables, is_small))

    def drain(self, program: int, what: "job_pb2.Drain.What") -> Answer:
        """Waits for state."""
        return self.request(program, what).result()

    def show(self, values: Callable[[], Mapping[str, float]]) -> None:
        """Sends the pool the numbers that the script was shown, for the curves of the pool's page.

        Args:
            values: Returns the numbers, by name. Not called if numbers were sent less than half a second ago.
        """
        now_s = time.monotonic()
        if now_s - self._shown_s >= _SHOWN_S:
            self._shown_s = now_s
            kept = {name[:_SHOWN_NAME]: value for name, value in itertools.islice(values().items(), _SHOWN_NAMES)}
            self._stream.show(job_pb2.Shown(values=kept))

    def snapshot(self) -> None:
        """Waits for a snapshot, so that steps before it are not made again: what they have read may change from now on."""
        self._flush()
        self._stream.snapshot()

    def _expected(self, step: int) -> StepResult:
        result = self._stream.expect(step)

        def wait() -> None:
            # The step may not have been sent yet.
            if step >= self._flow.sent:
                self._flush()
            self._stream.wait_result(result)

        return StepResult(result, wait)

    @property
    def bytes_from_pool(self) -> int:
        """Bytes fetched: states and results."""
        return self._stream.bytes_fetched

    def close(self, exit_status: int = 0) -> list[job_pb2.ProcessUsage]:
        """Ends the job, and reports the script's exit status; returns what the job's processes used."""
        self._uploads.shutdown(cancel_futures=True)
        self._stream.close(exit_status)
        return self._stream.processes

    def _payload(self, pieces: Sequence[Buffer]) -> blobs_pb2.Payload:
        size = sum(memoryview(piece).nbytes for piece in pieces)
        if size <= INLINE_BYTES:
            self.bytes_to_pool += size
            return blobs_pb2.Payload(inline=b"".join(pieces))
        # Not named by its content: the pool deletes a state once it is used, and another job may need an equal state.
        ref, sent = one_time(size), [0]

        def chunks() -> Iterator[memoryview]:
            for piece in pieces:
                for chunk in chunked(flat(piece)):
                    yield chunk
                    sent.append(chunk.nbytes)

        with _sending(size, sent):
            self._sent(lambda: self._blobs.send(ref, chunks()))
        return blobs_pb2.Payload(blob=ref)

    def _upload(self, buffers: list[tuple[blobs_pb2.BlobRef, Any]]) -> None:
        sent = [0]
        with _sending(sum(ref.size_bytes for ref, _ in buffers), sent):
            self._sent(lambda: self._blobs.upload(buffers, sent.append))

    def _sent(self, send: Callable[[], int]) -> None:
        """Sends content; again if the job was lost during the transfer and has been restarted."""
        while True:
            num_over = self._stream.faults.num_over
            try:
                self.bytes_to_pool += send()
                return
            except FdtError:
                # If the job has failed meanwhile, its error explains the broken transfer better.
                if not self._stream.outlives(num_over):
                    raise


def _shapes_of(specs: Sequence[program_pb2.Tensor]) -> tuple[bytes, ...]:
    return tuple(spec.SerializeToString() for spec in specs)


def _named(
    arrays: Sequence[Any], specs: Sequence[program_pb2.Tensor]
) -> tuple[list[blobs_pb2.BlobRef], tuple[bytes, ...]]:
    """Returns the names of arrays, and a key that is equal for equal arrays; the same bytes may come in another shape."""
    with WAITING.doing("reading the arrays"):
        refs = [reference(array) for array in arrays]
    return refs, tuple(shape + ref.digest for shape, ref in zip(_shapes_of(specs), refs, strict=True))


def _sending(size: int, sent: Sequence[int]) -> contextlib.AbstractContextManager[None]:
    """Shows how much of a size is sent, given the sizes of the pieces that are."""
    return WAITING.doing(lambda: f"sending {of_bytes(min(size, sum(sent)), size)}")


def gathered(batches: Iterable[bytes], limit_bytes: int) -> Iterator[list[bytes]]:
    """Yields batches in order, as many at a time as stay within a size; a larger batch comes alone."""
    part: list[bytes] = []
    for batch in batches:
        if part and sum(map(len, part)) + len(batch) > limit_bytes:
            yield part
            part = []
        part.append(batch)
    if part:
        yield part
