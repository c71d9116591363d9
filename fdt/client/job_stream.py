"""The client's side of the job stream: instructions out, events in, one reader thread.

If a job's workers, host or pool are lost, a new job replays its log (`fdt.client.recovery`). A caller that waits here notices
a pause.
"""

import collections
import contextlib
import functools
import itertools
import threading
import time
from collections.abc import Callable, Sequence

import grpc

from fdt.base.config import WORKERS, Timing
from fdt.base.failure import as_error
from fdt.base.progress_line import WAITING
from fdt.base.usage import added
from fdt.client.changes import Changes
from fdt.client.direct import Direct
from fdt.client.faults import Faults
from fdt.client.job_call import JobCall
from fdt.client.recovery import Recovery
from fdt.client.report import say
from fdt.client.step_results import Result, StepResults
from fdt.client.step_times import StepTimes
from fdt.errors import FdtError, JobError, PoolRestartingError, StepError, WorkerError, WorkerLostError
from fdt.pool.state.job_queue import WORKERS_START
from fdt.transport import statuses
from fdt.transport.blob_client import BlobClient, SharedStore
from fdt.transport.blobs import Buffer, payloads_of
from fdt.v1 import blobs_pb2, job_pb2

# What workers do with a program before its first step ends.
_BUILDING = {"sync": "divide and compile", "async": "cut and compile"}


class JobStream:
    """One open `Jobs.Train` call, replaced by another when it is lost.

    Every method that waits raises the job's error as soon as it is known: the pool receives the workers' heartbeats, and the
    channel's keepalive notices a pool that is gone.

    Attributes:
        faults: The faults of the job.
        usage: What each worker did since the beginning, as of the last complete drain.
        step_times: Counts and times the steps that have ended.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        address: str,
        opening: job_pb2.OpenJob,
        timing: Timing,
        blobs: BlobClient | SharedStore,
        workers: range | None = None,
    ):
        """Requests the job.

        Args:
            channel: Channel to the pool.
            address: Address of the pool, for messages.
            opening: First instruction of the job.
            timing: Limits of every wait.
            blobs: Transfers contents.
            workers: Numbers of workers with which it may go on; None for as many as it began with.
        """
        self._timing = timing
        self._blobs = blobs
        self._address = address
        self._channel = channel
        # Past the control process of a run's own pool.
        self._direct = Direct(blobs.directory.parent / WORKERS if isinstance(blobs, SharedStore) else None)
        self._changes = Changes(self._direct, self._handle_direct)
        self._is_closing = False
        # Held while an instruction is sent and logged, so that workers and log have the same order.
        self._order = threading.RLock()
        self._recovery = Recovery(channel, address, opening, timing, blobs, workers, self._go_on, self._order)
        # The reason why the client cancelled the call, to begin the job again.
        self._reason: FdtError | None = None
        # A step's error, still to be raised in the script; and the number of steps made before it since the beginning.
        self._failed_step: tuple[StepError, int] | None = None
        # What the workers of the jobs before the present one did.
        self._used_before: list[job_pb2.WorkerUsage] = []
        self.usage: list[job_pb2.WorkerUsage] = []
        self.faults, self.step_times = Faults(), StepTimes()
        self._error: FdtError | None = None
        self._started = self._closed = self._ended = False
        self._drained: dict[int, job_pb2.Drained] = {}
        # Serial numbers of drains whose answers nobody waits for any more; any thread may add to them at any time.
        self.unwanted: collections.deque[int] = collections.deque()
        self._results = StepResults()
        # Which file the workers cannot read, by the number of a data set whose rows are files; "" if they can read all.
        self._missing: dict[int, str] = {}
        # What the job's processes used, once it has ended without error.
        self.processes: list[job_pb2.ProcessUsage] = []
        # Serial numbers of drains.
        self._serials = itertools.count(1)
        # Number of programs sent, and of those that all workers have; number of steps made when the newest was sent.
        self._loads = self._loaded = 0
        self._steps_before = 0
        self._mode, self._queued = opening.mode, ""
        # Bytes of the largest step's results, and all bytes fetched.
        self.result_bytes = self.bytes_fetched = 0
        self._call = JobCall(channel, self._direct, self.check)
        self.send(job_pb2.Instruction(open=opening))
        self._call.open()
        self._reader = threading.Thread(target=self._read, name="fdt-job-events", daemon=True)
        self._reader.start()

    def send(
        self,
        instruction: job_pb2.Instruction,
        contents: Sequence[Sequence[Buffer]] = (),
        is_small: bool = False,
        more_follows: bool = False,
    ) -> None:
        """Queues an instruction.

        Args:
            instruction: The instruction.
            contents: Contents of the blobs that it names, in order; each in pieces, which must not change.
            is_small, more_follows: See `JobCall.send`.

        Raises:
            FdtError: The job has failed.
        """
        with self._order:
            self.check()
            self._recovery.tell(instruction, contents)
            if instruction.WhichOneof("kind") == "load":
                self._loads += 1
                self._steps_before = self.step_times.done
            self._call.send(instruction, is_small, more_follows)

    def show(self, shown: job_pb2.Shown) -> None:
        """Sends the pool the numbers that the script was shown; workers and a job that replaces this one do not get them."""
        if self._started and not self._is_closing:
            self._call.tell_pool(job_pb2.Instruction(shown=shown))

    def keep_up(self) -> None:
        """Takes what has come, and requests a snapshot when one is due; `Job` calls it whenever it sends steps."""
        self._direct.take(0.0, self._handle_direct)
        self._forget_unwanted()
        if self._recovery.is_due:
            with self._order:
                self.check()
                self._ask(self._recovery.questions(self._serials))

    def snapshot(self) -> None:
        """Waits until a snapshot has all steps so far. Returns without one while the last one travels to the client."""
        self._forget_unwanted()
        # Again if the job was lost meanwhile, and its request for a snapshot with it.
        for _ in range(2):
            self._wait(lambda: not self._recovery.is_pending, "a snapshot")
            if not self._recovery.may_ask:
                return
            with self._order:
                self.check()
                questions = self._recovery.questions(self._serials)
                self._ask(questions)
            if not questions:
                return
            self._wait(lambda: not self._recovery.is_pending, "a snapshot")

    def _forget_unwanted(self) -> None:
        with self._order:
            while self.unwanted:
                serial = self.unwanted.popleft()
                self._recovery.give_up(serial)
                drained = self._drained.pop(serial, None)
                if drained is not None:
                    for payload in (*payloads_of(drained.state), drained.outputs):
                        self._let_go(payload)

    def _ask(self, questions: Sequence[job_pb2.Instruction]) -> None:
        for question in questions:
            self._call.send(question)

    def check(self) -> None:
        """Raises the job's error, if it has one."""
        if self._error is not None:
            raise self._error
        if self._failed_step is not None:
            raise self._failed_step[0]

    def leave_out_failed_step(self) -> int | None:
        """Continues without the step that failed, and without the steps after it.

        Returns:
            Number of steps made before it since the beginning; None if no step has failed since the last call.
        """
        failed, self._failed_step = self._failed_step, None
        return None if failed is None else failed[1]

    @property
    def failed(self) -> bool:
        """Whether the job has failed or ended."""
        return self._error is not None or self._ended

    def wait_steps(self, steps: int) -> None:
        """Waits until `steps` steps have finished since the job began."""
        if self.step_times.done < steps:
            self._wait(lambda: self.step_times.done >= steps, f"step {steps}")

    def drain(
        self, program: int, what: "job_pb2.Drain.What", variables: Sequence[int] = (), is_small: bool = False
    ) -> int:
        """Requests state; returns a serial number for `answer`. See `send`."""
        with self._order:
            drain = job_pb2.Drain(program=program, what=what, serial=next(self._serials), variables=variables)
            self.send(job_pb2.Instruction(drain=drain), is_small=is_small)
        return drain.serial

    def has_drained(self, serial: int) -> bool:
        """Whether the answer has arrived."""
        self.check()
        return serial in self._drained

    def answer(self, serial: int) -> tuple[job_pb2.Drained, list[Buffer], Buffer]:
        """Waits for an answer; returns it, and the contents of its state (see `payloads_of`) and outputs."""
        while True:
            self._wait(lambda: serial in self._drained, "the workers' state")
            num_over, drained = self.faults.num_over, self._drained.pop(serial)
            try:
                contents = [self.content(payload) for payload in payloads_of(drained.state)]
                outputs = self.content(drained.outputs)
            except FdtError:
                # The contents that a lost job wrote are lost with it; the replayed drain asks the next job for them.
                if not self.outlives(num_over):
                    raise
                continue
            self._recovery.answered(serial)
            return drained, contents, outputs

    def outlives(self, num_over: int) -> bool:
        """Waits until the job goes on, if it was lost since `num_over` faults were over; returns whether it was.

        Raises:
            FdtError: It does not go on.
        """
        # The loss may become known a moment after the failure.
        deadline = time.monotonic() + self._timing.call_s
        with self._changes:
            while num_over == self.faults.count and not self._ended and self._failed_step is None:
                if (remaining_s := deadline - time.monotonic()) <= 0:
                    break
                self._changes.wait(remaining_s)
        self.check()
        if num_over == self.faults.count:
            return False
        self._wait(lambda: self.faults.is_over, "the job that goes on in place of the lost one")
        return True

    def missing(self, data: int) -> str:
        """Waits until the workers have looked at a data set's files; returns which one they cannot read, and why, or ""."""
        self._wait(lambda: data in self._missing, "the workers' look at the data's files")
        return self._missing[data]

    def expect(self, step: int) -> Result:
        """Returns the place for the outputs of a step, numbered from the job's beginning."""
        return self._results.expect(step)

    def content(self, payload: blobs_pb2.Payload) -> Buffer:
        """Returns the bytes of a payload, and lets the pool delete its blob."""
        if payload.WhichOneof("content") != "blob":
            content: Buffer = payload.inline
        else:
            content = self._blobs.download(payload.blob)
            self._let_go(payload)
        with self._changes:
            self.bytes_fetched += len(content)
        return content

    def _let_go(self, payload: blobs_pb2.Payload) -> None:
        if payload.WhichOneof("content") == "blob":
            self._call.tell_pool(job_pb2.Instruction(fetched=job_pb2.Fetched(blobs=[payload.blob])))

    def wait_result(self, result: Result) -> Buffer:
        """Waits for a step's outputs."""
        if result.error is None:
            self._wait(lambda: result.outputs is not None, "a step's results")
        if result.error is not None:
            raise result.error
        assert result.outputs is not None
        return result.outputs

    def close(self, exit_status: int = 0) -> None:
        """Ends the job; a job that has not started or has failed is only cancelled.

        Args:
            exit_status: The script's exit status, for the pool's list of jobs.
        """
        self._is_closing = True
        # Stops a search for workers, and the replay to another job.
        self._recovery.close()
        if self._error is None and self._started:
            try:
                self.send(job_pb2.Instruction(close=job_pb2.CloseJob(exit_status=exit_status & 0xFF)))
                self._wait(lambda: self._closed or self._ended, "the end of the job", self._timing.stop_s)
            except FdtError as error:
                say(f"the job did not end cleanly: {error}")
        with self._order:
            self._call.end()
            self._call.cancel()
        self._reader.join(self._timing.stop_s)
        # The last reference to the call, which must not live until the interpreter ends (see `statuses.from_rpc_error`).
        del self._call

    def _wait(self, condition: Callable[[], bool], what: str, limit_s: float | None = None) -> None:
        if self._direct.holds:
            with self._order:
                self._direct.flush(self.check)
        deadline = None if limit_s is None else time.monotonic() + limit_s
        # A step before it may have failed after the awaited event arrived.
        self.check()
        with WAITING.doing(self._words) if self._is_new else contextlib.nullcontext(), self._changes:
            while not condition():
                self.check()
                if self._ended:
                    raise JobError(f"The pool at {self._address} ended the job before {what} had come.")
                # Waking now and then lets Ctrl-C through.
                self._changes.wait(1.0)
                if deadline is not None and time.monotonic() > deadline:
                    raise WorkerError(
                        f"Waited {limit_s:.0f} s for {what}; nothing came. See `fdt jobs` and `fdt logs`."
                    )

    @property
    def _is_new(self) -> bool:
        """Whether no step of the newest program is known to have ended, so that the workers may still be preparing it."""
        return self.step_times.done == self._steps_before and not self._closed

    def _words(self) -> str:
        """Returns a description of what the workers do, as far as the client knows; "" once they make steps."""
        if not self._started:
            return f"waiting for workers ({self._queued})" if self._queued else "starting workers"
        if self._loaded < self._loads:
            return "the workers read the step"
        return f"the workers {_BUILDING[self._mode]} the step" if self._is_new else ""

    # ---- the reader's thread ----------------------------------------------------------------------------------------

    def _read(self) -> None:
        error: FdtError | None
        try:
            error = self._followed()
        except Exception as failure:  # on any error the script must not wait for a thread that has ended
            error = JobError(f"What came from the pool could not be taken: {type(failure).__name__}: {failure}")
            error.__cause__ = failure
        with self._changes:
            self._error = self._error or (error and self.faults.explained(error))
            self._ended = True
            self._changes.tell()
        self._call.end()

    def _followed(self) -> FdtError | None:
        """Receives the events of the job and of its replacements; returns the error if it has failed."""
        error = self._listen()
        while error is not None and not self._is_closing and (isinstance(error, StepError) or self._is_lost(error)):
            try:
                self._recovery.find_workers(error)
            except FdtError as missing:
                return missing
            failure = self._begun_before(error) if isinstance(error, StepError) else self._begun_again(error)
            error = failure or self._listen()
        return error

    def _listen(self) -> FdtError | None:
        """Receives the events of one call until it ends; returns the error, None if the job had ended."""
        broken: FdtError | None = None
        try:
            for event in self._call.events():
                if event.HasField("failed"):
                    return as_error(event.failed)
                if broken is None:
                    broken = self._handled(event)
        except grpc.RpcError as failure:
            if self._reason is not None:
                return self._reason
            return broken or statuses.from_rpc_error(failure, self._address)
        finally:
            with self._order:
                self._direct.end(self._handle_direct)
        return broken

    def _handled(self, event: job_pb2.Event) -> FdtError | None:
        try:
            self._handle(event)
        except FdtError as failure:
            # A blob that the event names cannot be fetched. If the job is lost, the pool will soon report the cause.
            timer = threading.Timer(self._timing.settle_s * 2, self._call.cancel)
            timer.name = "fdt-broken-job"
            timer.start()
            return failure
        return None

    def _go_on(self, reason: str) -> None:
        """Restarts the job with as many workers as are available to it now."""
        if self._is_closing:
            return
        self._reason = WorkerLostError(reason)
        self._call.cancel()

    def _leave(self, call: JobCall) -> None:
        # The call may be lost already, and the job begun again.
        if call is self._call:
            self._reason = PoolRestartingError("The pool goes down to be started again.")
            call.cancel()

    def _is_lost(self, error: FdtError) -> bool:
        """Whether the job has ended by a fault, after which it can be begun again."""
        if self._is_closing:
            return False
        asked, self._reason = error is self._reason, None
        if not asked:
            self._recovery.lost()
        with self._changes:
            is_lost = self.faults.lost(error, self.step_times.done, asked=asked)
            self._changes.tell()
        return is_lost

    def _begun_before(self, error: StepError) -> FdtError | None:
        """Requests another job, which makes all steps before the one that failed. If it is not known which step failed, the
        other job makes each step by itself, so that its next failure names the step.

        Returns:
            See `_begun_again`.
        """
        if error.step.candidates > 1:
            return self._begun_again(error, alone=True)
        with self._order:
            first = self._recovery.steps + error.step.before
            if first < self._recovery.steps_seen:
                return JobError(
                    f"The job was lost and cannot be begun again: step {first + 1} had been made, and fails now. Have files "
                    f"that it reads been changed since? ({error})"
                )
            self._failed_step = error, first
            self._recovery.drop_steps(first)
            failure = self._begun_again(error)
        with self._changes:
            self.step_times.done = first
            self._results.fail_from(first, error)
            self._changes.tell()
        return failure

    def _begun_again(self, error: FdtError, alone: bool = False) -> FdtError | None:
        """Requests another job, and replays to it the log since the last snapshot.

        Args:
            error: The cause of the loss.
            alone: Whether the workers make each step by itself.

        Returns:
            The error, if that failed: data that it needs are lost, or the pool is lost once more.
        """
        with self._order:
            self._call.cancel()
            self._call.end()
            self._direct.begin()
            self._call, self._used_before = JobCall(self._channel, self._direct, self.check), self.usage
            # Every other time without snapshots in between: workers that die of a snapshot get further then.
            on_the_way = self._serials if self.faults.in_a_row % 2 == 0 else None
            try:
                for instruction in self._recovery.again(error, on_the_way, alone):
                    self._call.send(instruction)
            except FdtError as failure:
                return failure
            self._call.open()
        return None

    def _handle_direct(self, event: job_pb2.Event) -> None:
        self._handle(event, is_direct=True)

    def _handle(self, event: job_pb2.Event, is_direct: bool = False) -> None:
        kind = event.WhichOneof("kind")
        if kind == "queued":
            self._tell_queued(event.queued)
        elif kind == "leaving":
            with self._order:
                self._ask(self._recovery.leave(self._serials, functools.partial(self._leave, self._call)))
        elif kind == "wanted":
            self._go_on(f"{event.wanted.workers} worker(s) are given back to others that wait.")
        # Fetched before the step counts as done, so there are never more results than steps that the client may be ahead.
        outputs = self._outputs(event.results) if kind == "results" else None
        with self._changes:
            # Workers answer as soon as they have joined; the pool's event for that may arrive after their first answer.
            self._started = self._started or kind not in ("queued", "failed", "leaving", "wanted")
            if kind == "started":
                self._direct.connect(event.started.processes)
            if kind == "loaded":
                self._loaded += 1
                self.faults.loaded(self._recovery.steps)
            elif kind == "started":
                self._count(self._recovery.steps)
            elif kind == "progress":
                self._heard(event.progress.steps)
            elif kind == "results":
                self._heard(event.results.step + 1)
                result = self._results.awaited(self._recovery.steps + event.results.step)
                if result is not None and outputs is not None:
                    result.outputs = outputs
            elif kind == "bound":
                self._look_at(event.bound)
            elif kind == "drained":
                self._heard(event.drained.steps)
                self._take(event.drained, may_be_snapshot=not is_direct)
            elif kind == "closed":
                self.processes = sorted([*self.processes, *event.closed.processes], key=lambda process: process.rank)
                self._closed = event.closed.remaining == 0
            self._changes.tell()

    def _look_at(self, bound: job_pb2.Bound) -> None:
        """Records whether the workers can read a data set.

        Raises:
            WorkerError: The workers of a job that replaces a lost one cannot, and those before could.
        """
        if bound.missing and self._missing.get(bound.data) == "":
            raise WorkerError(
                f"The job was lost, and the workers of the next one cannot read its data: {bound.missing}"
            )
        self._missing.setdefault(bound.data, bound.missing)

    def _take(self, drained: job_pb2.Drained, may_be_snapshot: bool) -> None:
        """Handles the answer to a drain: the client's own, or a part of a snapshot."""
        if drained.workers:
            self.usage = added(self._used_before, drained.workers)
        unneeded = self._recovery.take(drained) if may_be_snapshot else None
        if unneeded is None:
            self._drained[drained.serial] = drained
        elif unneeded:
            self._call.tell_pool(job_pb2.Instruction(fetched=job_pb2.Fetched(blobs=unneeded)))

    def _tell_queued(self, queued: job_pb2.Queued) -> None:
        """Shows what the job waits for; prints a line if other jobs are before it, since that may take long."""
        self._queued = queued.reason
        if queued.reason != WORKERS_START:
            say(f"waiting for workers: position {queued.position} in the queue ({queued.reason})")

    def _outputs(self, results: job_pb2.Results) -> Buffer | None:
        """Fetches a step's outputs, if the script still holds the result."""
        payload = results.outputs
        self.result_bytes = max(self.result_bytes, payload.blob.size_bytes)
        if self._results.awaited(self._recovery.steps + results.step) is None:
            self._let_go(payload)
            return None
        # Copied to memory: a memory map would keep the disk's blocks allocated.
        return bytes(self.content(payload))

    def _heard(self, steps: int) -> None:
        """Records how many steps the present workers have made."""
        self.faults.heard(self._recovery.steps + steps)
        self._count(self._recovery.steps + steps)

    def _count(self, steps: int) -> None:
        times = self.step_times
        times.reach(steps)
        if not self.faults.is_over and steps >= times.done:
            repeated = times.done - self._recovery.steps
            say(self.faults.over(times.done, repeated, self._recovery.num_workers).line())
