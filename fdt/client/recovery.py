"""Recovers a lost job: requests snapshots, waits for workers or a restarted pool, and replays the log to a new job.

Snapshots take a bounded part of the workers' time; some are downloaded, which takes a bounded part of the network's.
"""

import contextlib
import math
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

import grpc

from fdt.base.config import Timing
from fdt.base.versions import versions
from fdt.client.replay_log import Base, ReplayLog, Told
from fdt.client.report import say
from fdt.client.snapshot_interval import SnapshotInterval
from fdt.errors import (
    AccessError,
    CapacityError,
    FdtError,
    JobCancelledError,
    JobError,
    PoolRestartingError,
    PoolUnreachableError,
    ProtocolError,
)
from fdt.transport import statuses
from fdt.transport.blob_client import BlobClient, SharedStore
from fdt.transport.blobs import Buffer, holding, named_by, one_time, read_by, streamed_by
from fdt.v1 import blobs_pb2, job_pb2, pool_pb2, pool_pb2_grpc

# Size of the log at which a snapshot is requested, whenever the last one was.
_LOG_BYTES = 256 << 20
# Least seconds between two downloads of snapshots; largest part of the time that downloads take.
_HOME_S, _HOME_SHARE = 20.0, 0.02
# Seconds between two checks for more workers, at first; using more workers costs seconds, so each time this doubles.
_MORE_S = 30.0
_MORE_LIMIT_S = 600.0


class Recovery:
    """The recovery of one job.

    Attributes:
        steps: Number of steps after which the present job began.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        address: str,
        opening: job_pb2.OpenJob,
        timing: Timing,
        blobs: BlobClient | SharedStore,
        workers: range | None,
        more: Callable[[str], None],
        order: AbstractContextManager[object],
    ) -> None:
        """
        Args:
            channel: Channel to the pool.
            address: Address of the pool, for messages.
            opening: First instruction of the job; receives a session id.
            timing: Limits of every wait.
            blobs: Transfers contents.
            workers: Numbers of workers with which the job may go on; None for as many as it began with.
            more: Called in another thread, with a reason, when the job should restart to use more workers.
            order: Lock that the caller holds while it sends an instruction, and during the replay to another job.
        """
        self._channel, self._address, self._timing, self._blobs = channel, address, timing, blobs
        self._opening, self._tell_more, self._order = opening, more, order
        self._workers = workers or range(opening.num_workers, opening.num_workers + 1)
        opening.least_workers = self._workers[0]
        # Number of additional workers at the last check, and seconds until the next.
        self._more, self._more_s = 0, _MORE_S
        opening.session = os.urandom(16)
        self.steps = 0
        # A run's own pool is lost together with the run, so its snapshots are not downloaded.
        self._brings_home = timing.reconnect_s > 0
        self._replay_log = ReplayLog(self._brings_home)
        self._couriers = ThreadPoolExecutor(max_workers=1, thread_name_prefix="fdt-snapshots")
        now_s = time.monotonic()
        self._snapshot_interval = SnapshotInterval(timing.snapshot_s, now_s)
        self._snapshot_due_s, self._home_due_s, self._more_due_s = now_s + timing.snapshot_s, now_s, now_s + _MORE_S
        self._closing = threading.Event()
        # Called once the job can begin again elsewhere, when the pool is about to go down.
        self._leave: Callable[[], None] | None = None

    @property
    def num_workers(self) -> int:
        """The number of workers of the present job."""
        return int(self._opening.num_workers)

    def tell(self, instruction: job_pb2.Instruction, contents: Sequence[Sequence[Buffer]]) -> None:
        """Records an instruction; see `JobStream.send`."""
        if instruction.HasField("open"):
            # Kept by reference: another job may be opened with other numbers.
            self._opening = instruction.open
        self._replay_log.tell(Told(instruction, tuple(contents)))

    def answered(self, serial: int) -> None:
        """Records that the client has the answer to a drain."""
        with self._order:
            self._replay_log.answered(serial)

    def give_up(self, serial: int) -> None:
        """Records that nobody waits for the answer to a drain any more."""
        with self._order:
            self._replay_log.give_up(serial)

    # ---- snapshots --------------------------------------------------------------------------------------------------

    @property
    def is_due(self) -> bool:
        """Whether a snapshot should be requested."""
        due = time.monotonic() >= self._snapshot_due_s or self._replay_log.num_bytes > _LOG_BYTES
        return due and self.may_ask

    @property
    def may_ask(self) -> bool:
        """Whether a snapshot may be requested."""
        # The next snapshot replaces the last one, which may still be downloading.
        return not self.is_pending and self._home_due_s != math.inf and self._leave is None

    @property
    def is_pending(self) -> bool:
        """Whether a requested snapshot has not arrived."""
        return self._replay_log.is_pending

    @property
    def steps_seen(self) -> int:
        """See `ReplayLog`."""
        return self._replay_log.steps_seen

    def questions(self, serials: Iterator[int]) -> list[job_pb2.Instruction]:
        """Returns the instructions that request a snapshot; see `ReplayLog.ask`."""
        return self._replay_log.ask(serials)

    def take(self, drained: job_pb2.Drained) -> list[blobs_pb2.BlobRef] | None:
        """Adds a part of a snapshot; see `ReplayLog.take`."""
        with self._order:
            unneeded = self._replay_log.take(drained)
        if unneeded is None or self._replay_log.is_pending or self._closing.is_set():
            return unneeded
        if self._leave is not None:
            self._go_home()
            return unneeded
        now_s = time.monotonic()
        self._snapshot_due_s = now_s + self._snapshot_interval.interval_s(drained.seconds, now_s)
        if self.num_workers < self._workers[-1] and now_s >= self._more_due_s:
            self._more_due_s = now_s + self._more_s
            self._couriers.submit(self._look_for_more)
        if self._brings_home and (now_s >= self._home_due_s or self._replay_log.num_bytes > _LOG_BYTES):
            self._home_due_s = math.inf
            self._couriers.submit(self._bring_home, self._replay_log.newest)
        return unneeded

    def _bring_home(self, base: Base) -> None:
        """Downloads a snapshot, in case the pool is lost with its files; runs in a thread of its own."""
        began_s = time.monotonic()
        with contextlib.suppress(FdtError):
            known = self._replay_log.home.at_home()
            contents = {ref.digest: known.get(ref.digest) or self._blobs.download(ref) for ref in base.on_pool()}
            with self._order:
                self._replay_log.is_home(base.with_contents(contents))
        self._home_due_s = time.monotonic() + max(_HOME_S, (time.monotonic() - began_s) / _HOME_SHARE)

    def leave(self, serials: Iterator[int], then: Callable[[], None]) -> list[job_pb2.Instruction]:
        """Downloads what the job needs to go on in another pool, since this one goes down.

        Args:
            serials: See `questions`.
            then: Called in another thread when that is done, or has failed: the client has the log anyway. Not called if the
                pool is not expected back.

        Returns:
            The instructions that request a snapshot.
        """
        if not self._brings_home or self._leave is not None or self._closing.is_set():
            return []
        self._leave = then
        # Always a new snapshot: one requested before may be old.
        asked = self.questions(serials)
        if not self._replay_log.is_pending:
            self._go_home()
        return asked

    def _go_home(self) -> None:
        assert self._leave is not None
        self._couriers.submit(self._bring_home, self._replay_log.newest)
        self._couriers.submit(self._leave)

    def _look_for_more(self) -> None:
        """Checks whether the job could go on with more workers; runs in a thread of its own."""
        lacking = self._workers[-1] - self.num_workers
        with contextlib.suppress(FdtError):
            before, self._more = self._more, min(self._described().num_free, lacking)
            # Hosts join one after another: waits until their number no longer grows, to restart only once.
            if self._more == lacking or 0 < self._more == before:
                more, self._more, self._more_s = self._more, 0, min(2 * self._more_s, _MORE_LIMIT_S)
                self._tell_more(f"{more} more worker(s) are there.")

    # ---- another job ------------------------------------------------------------------------------------------------

    def lost(self) -> None:
        """Records a fault."""
        self._snapshot_interval.lost(time.monotonic())

    def drop_steps(self, first: int) -> None:
        """Leaves out all steps from one on; see `ReplayLog.drop_steps`."""
        self._replay_log.drop_steps(first)

    def again(self, error: FdtError, serials: Iterator[int] | None, alone: bool) -> list[job_pb2.Instruction]:
        """Returns the instructions for a job that replaces the lost one, after sending the blobs that they name.

        Args:
            error: Why the job is lost.
            serials: See `ReplayLog.again`.
            alone: Whether each step is to be made to its end before the next one begins.

        Raises:
            FdtError: No other job can be opened, or data that it needs are lost.
        """
        self._leave = None
        if self._missing(self._replay_log.newest.on_pool()):
            if not isinstance(error, PoolUnreachableError):
                say("the pool has lost the newest snapshot, or its disk has changed it: one before is used")
            self._replay_log.lose_newest()
        self.steps = self._replay_log.newest.steps
        instructions = []
        for told in self._replay_log.again(serials):
            if self._closing.is_set():
                raise error
            instructions.append(self._resent(told))
            if alone and told.instruction.HasField("run"):
                # A copy: the log's own message must not change.
                instructions[-1] = _alone(instructions[-1])
        return instructions

    def find_workers(self, error: FdtError) -> None:
        """Waits until the pool answers, and has enough workers for the job to go on.

        Args:
            error: Why the job is lost.

        Raises:
            FdtError: It does not answer, or has too few.
        """
        end_s, pause_s, is_said = time.monotonic() + self._timing.reconnect_s, 0.1, False
        # The pool may not know of the loss, and count the lost job's workers as busy.
        is_known = isinstance(error, PoolRestartingError) or not isinstance(error, PoolUnreachableError)
        own = 0 if is_known else self.num_workers
        while not self._closing.is_set():
            try:
                self._opening.num_workers = self._enough(self._described(), own)
                return
            # A pool that has just started may have a token that clients cannot read yet; one that ends cancels all calls.
            except (PoolUnreachableError, CapacityError, AccessError, JobCancelledError) as missing:
                if time.monotonic() > end_s:
                    raise missing if isinstance(missing, CapacityError) else error from None
                if not is_said:
                    detail = "" if isinstance(missing, PoolRestartingError) else f" ({missing})"
                    say(f"{error} Waiting {self._timing.reconnect_s:.0f} s at most.{detail}")
                    is_said = True
            # Many clients may wait for the same pool.
            self._closing.wait(pause_s * random.uniform(0.5, 1.5))
            pause_s = min(2 * pause_s, 5.0)
        raise error

    def _described(self) -> pool_pb2.DescribeReply:
        with statuses.translated(self._address):
            request = pool_pb2.DescribeRequest(versions=versions())
            return pool_pb2_grpc.PoolStub(self._channel).Describe(request, timeout=self._timing.connect_s)

    def _enough(self, described: pool_pb2.DescribeReply, own: int) -> int:
        """Returns the number of workers with which to go on.

        Args:
            described: Description of the pool.
            own: Number of the job's own workers that count as busy.

        Raises:
            CapacityError: There are too few.
        """
        least, most = self._workers[0], self._workers[-1]
        # A scheduler provides the others once a job waits for them.
        if max(described.num_workers, described.max_workers) < least:
            raise CapacityError(
                f"The pool has {described.num_workers} worker(s) left, and {least} are needed at least."
            )
        return int(max(least, min(most, described.num_free + own, described.num_workers)))

    def _missing(self, refs: Sequence[blobs_pb2.BlobRef]) -> bool:
        return bool(refs) and bool(self._blobs.find_missing(refs))

    def _resent(self, told: Told) -> job_pb2.Instruction:
        """Sends the contents of an instruction's blobs that the pool no longer has; returns the instruction."""
        if not told.contents:
            return told.instruction
        instruction = job_pb2.Instruction()
        instruction.CopyFrom(told.instruction)
        refs = _refs(instruction)
        if instruction.WhichOneof("kind") in ("run", "assign"):
            # One-time blobs have been used, so they get new names.
            for pieces in told.contents:
                old = refs.pop(0)
                fresh = one_time(old.size_bytes)
                self._blobs.send(fresh, pieces)
                # All inputs of a chunk are in one blob.
                for same in [old, *(ref for ref in refs if ref == old)]:
                    same.CopyFrom(fresh)
                refs = [ref for ref in refs if ref != fresh]
        else:
            try:
                self._blobs.upload([(ref, pieces[0]) for ref, pieces in zip(refs, told.contents, strict=True)])
            except ProtocolError as error:
                raise JobError(
                    "The job was lost and cannot be begun again: an array that it trains on has been changed in place since "
                    f"it was sent. ({error})"
                ) from error
        return instruction

    def close(self) -> None:
        """Stops waits, and downloads that have not begun."""
        self._closing.set()
        self._couriers.shutdown(wait=False, cancel_futures=True)


def _alone(instruction: job_pb2.Instruction) -> job_pb2.Instruction:
    copied = job_pb2.Instruction()
    copied.CopyFrom(instruction)
    copied.run.alone = True
    return copied


def _refs(instruction: job_pb2.Instruction) -> list[blobs_pb2.BlobRef]:
    """Returns references to the blob messages within an instruction."""
    kind = instruction.WhichOneof("kind")
    if kind == "load":
        return [instruction.load.blob]
    if kind == "bind":
        return named_by(instruction.bind)
    if kind == "run":
        return [*streamed_by(instruction.run), *read_by(instruction.run)]
    return holding(instruction.assign.state)
