"""Runs a worker process: makes a runtime's engine, waits for a job, serves it, exits.

The main thread drives the engine, in the order of the instructions. One other thread receives instructions, one sends
heartbeats.
"""

import array
import contextlib
import faulthandler
import functools
import gc
import os
import queue
import resource
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from fdt.base import failure
from fdt.base.config import Timing
from fdt.errors import ProtocolError, WorkerError, WorkerLostError
from fdt.transport import wire
from fdt.transport.blob_client import HostStore, WorkerBlobClient
from fdt.transport.blob_store import BlobStore, WorkerStore
from fdt.transport.blobs import Buffer, streamed_by
from fdt.transport.direct import MAX_BYTES, Listener
from fdt.v1 import job_pb2, program_pb2, worker_pb2
from fdt.worker.assigned_variables import AssignedVariables
from fdt.worker.gateway import Gateway
from fdt.worker.link import Link
from fdt.worker.rendezvous import PoolRendezvous
from fdt.worker.runtime import Assignment, Batch, Engine
from fdt.worker.stall_detector import StallWatch
from fdt.worker.worker_config import WorkerConfig

# Steps are handed to the engine in chunks of about this many seconds, so that progress is reported.
CHUNK_S = 0.1
MAX_CHUNK = 256
# Steps behind a chunk of which the engine is told, so that rows that are files are read ahead.
AHEAD = 4
# Seconds between two checks of an engine's progress: while instructions are awaited, and while a step that runs alone runs.
POLL_S, ALONE_S = 0.05, 0.001


class Worker:
    """Drives an engine through one job."""

    def __init__(
        self,
        engine: Engine,
        link: Link,
        store: BlobStore,
        timing: Timing,
        attached: Callable[[], None] = lambda: None,
        gateway: Gateway | None = None,
        config: WorkerConfig | None = None,
        memories: socket.socket | None = None,
    ) -> None:
        """
        Args:
            engine: The engine to drive.
            link: The stream to the pool.
            store: The store of this host's blobs.
            timing: The pool's intervals and limits.
            attached: Called when the pool's first message has come, before any program is read.
            gateway: Controls this process's tunnel; None if the process has none.
            config: The worker's settings, which say what it reads.
            memories: Where it asks for memory that it shares with others; see `fdt.worker.shared_memory`.
        """
        self._memories = memories
        self._attached, self._config = attached, config
        self._engine = engine
        self._link = link
        self._store = store
        self._timing = timing
        self._gateway = gateway
        self._assigned = AssignedVariables()
        self._stall = StallWatch(timing.stall_s)
        self._stalled = False
        link.on_beat = self._look
        self._rank, self._num_threads = 0, 1
        # Numbers of steps: given to the engine, made according to its last answer, and reported to the client, and to the pool.
        self._given = 0
        self._made = 0
        self._told, self._told_s = 0, 0.0
        self._pool_told, self._pool_told_s = 0, 0.0
        self._wait_s = 0.0
        self._rate = 0.0
        # Numbers of the data sets that are bound.
        self._bound: set[int] = set()
        # At most one instruction: one that `_take_more` took from the queue and that is not executed yet.
        self._next: list[worker_pb2.WorkerInstruction | None] = []
        self._handlers: dict[str, Callable[[job_pb2.Instruction], None]] = {
            "load": self._load,
            "forget": lambda i: self._forget(i.forget.program),
            "bind": lambda i: self._bind(i.bind),
            "assign": lambda i: self._assign(i.assign),
            "move": lambda i: self._move(i.move),
            "run": self._run,
            "drain": self._drain,
            "close": self._close,
        }

    def serve(self) -> None:
        """Waits for an assignment, then executes instructions until the stream ends; reports a failure to the pool."""
        first = self._link.receive()
        if first is None:
            return
        self._attached()
        try:
            self._join(first.assignment)
            self._work()
        except Exception as error:  # any error must reach the client
            traceback.print_exc()
            self._fail(error)
            while self._link.receive() is not None:
                pass

    def _join(self, message: worker_pb2.Assignment) -> None:
        self._rank, self._num_threads = message.rank, message.num_threads
        assignment = Assignment(
            job=message.job,
            rank=message.rank,
            num_workers=message.num_workers,
            num_threads=message.num_threads,
            environment=dict(message.environment),
            options=dict(message.options),
        )
        print(f"fdt worker: rank {message.rank} of job {message.job}", file=sys.stderr, flush=True)
        self._link.serve(message.key)
        rendezvous = PoolRendezvous(self._link.channel, self._timing, self._memories)
        self._join_networks(message, rendezvous)
        self._engine.join(assignment, self._store, rendezvous)
        self._link.send(worker_pb2.WorkerEvent(joined=worker_pb2.Joined()))

    def _join_networks(self, message: worker_pb2.Assignment, rendezvous: PoolRendezvous) -> None:
        """Connects this process's network to those of its job's other processes, before any program comes."""
        if not message.members:
            if self._gateway is not None:
                self._gateway.seal()
            return
        if self._gateway is None:
            raise WorkerError(
                "This worker has no network of its own that a tunnel could join to the job's other hosts."
            )
        self._gateway.meet(message.rank, message.members, rendezvous)

    def _work(self) -> None:
        ran = False
        while True:
            began_s = time.perf_counter()
            message = self._next.pop() if self._next else self._receive()
            if message is None:
                return
            kind = message.instruction.WhichOneof("kind")
            if ran and kind == "run":
                self._wait_s += time.perf_counter() - began_s
            ran = kind == "run"
            if kind not in self._handlers:
                raise ProtocolError(f"An instruction that a worker does not know. Received: kind={kind}")
            self._handlers[kind](message.instruction)

    def _receive(self) -> worker_pb2.WorkerInstruction | None:
        """Waits for an instruction; while none has come, reports the engine's progress."""
        with contextlib.suppress(queue.Empty):
            return self._link.receive(0.0)
        while self._steps_made() < self._given:
            try:
                return self._link.receive(POLL_S)
            except queue.Empty:
                self._tell_progress()
        self._tell_progress()
        if self._rank == 0 and self._pool_told < self._told:
            with contextlib.suppress(queue.Empty):
                return self._link.receive(POLL_S)
            self._tell_pool()
        return self._link.receive()

    def _steps_made(self) -> int:
        self._made = self._engine.steps()
        return self._made

    def _tell_progress(self) -> None:
        done = self._steps_made()
        if self._rank == 0 and done > self._told:
            self._told, self._told_s = done, time.monotonic()
            directly = self._link.send_directly(job_pb2.Event(progress=job_pb2.Progress(steps=done)))
            self._tell_pool(now=not directly)

    def _tell_pool(self, now: bool = True) -> None:
        """Reports the steps of which the client knows to the pool; every `POLL_S` only, if it need not be now."""
        if not now and time.monotonic() - self._pool_told_s < POLL_S:
            return
        self._pool_told, self._pool_told_s = self._told, time.monotonic()
        self._send(job_pb2.Event(progress=job_pb2.Progress(steps=self._told)))

    def _load(self, instruction: job_pb2.Instruction) -> None:
        load = instruction.load
        program = wire.decode(program_pb2.StepProgram, self._store.open(load.blob).tobytes())
        self._engine.load(load.program, program)
        self._assigned.load(load.program, program)
        self._send(job_pb2.Event(loaded=job_pb2.Loaded(program=load.program)))

    def _forget(self, program: int) -> None:
        self._engine.forget(program)
        self._assigned.forget(program)
        # Graphs are reference cycles of few objects: the garbage collector would run only after many programs.
        gc.collect()

    def _bind(self, bind: job_pb2.BindData) -> None:
        if bind.HasField("read"):
            self._bind_rows(bind)
            return
        self._engine.bind(bind.data, bind.arrays, False)
        self._bound.add(bind.data)

    def _bind_rows(self, bind: job_pb2.BindData) -> None:
        # Imported here: the control process, which starts the fork server, does not import TensorFlow.
        from fdt.worker.data_files import opened

        assert self._config is not None
        rows, missing = opened(self._store, bind, self._num_threads, self._config)
        if rows is not None:
            self._engine.bind_rows(bind.data, rows)
            self._bound.add(bind.data)
        self._send(job_pb2.Event(bound=job_pb2.Bound(data=bind.data, missing=missing)))

    def _assign(self, assign: job_pb2.AssignState) -> None:
        self._engine.assign(assign.program, assign.state)
        self._assigned.assign(assign.program, assign.state.variables)

    def _move(self, move: job_pb2.MoveState) -> None:
        if len(move.variables) != len(move.source_variables):
            raise ProtocolError(
                f"Expected as many source variables as variables to set. Received: {len(move.source_variables)} and "
                f"{len(move.variables)}"
            )
        self._assigned.require(move.source, move.source_variables)
        self._engine.move(move.program, move.variables, move.source, move.source_variables)
        self._assigned.assign(move.program, move.variables)

    def _run(self, instruction: job_pb2.Instruction) -> None:
        run = instruction.run
        self._assigned.require(run.program)
        if run.HasField("chunk"):
            self._run_of_chunk(run)
        else:
            self._make_steps(run, self._batches(run))

    def _run_of_chunk(self, run: job_pb2.RunSteps) -> None:
        """Makes the steps of a chunk, which then is read."""
        chunk = run.chunk
        each, rest = divmod(len(chunk.arrays), max(1, chunk.groups))
        if rest or not each:
            raise ProtocolError(
                f"Expected equally many arrays in each group. Received: {len(chunk.arrays)} arrays, {chunk.groups} groups"
            )
        for group in range(chunk.groups):
            arrays = chunk.arrays[group * each : (group + 1) * each]
            self._engine.bind(_data_of(run.data, group), arrays, True)
        self._make_steps(run, _in_turn(run))
        for group in range(chunk.groups):
            self._engine.release(_data_of(run.data, group))
        if streamed_by(run):
            self._send(job_pb2.Event(released=job_pb2.Released(data=run.data)))

    def _make_steps(self, run: job_pb2.RunSteps, waiting: list[Batch]) -> None:
        expected = 0
        while True:
            self._take_more(run, waiting)
            if not waiting:
                return
            size = 1 if run.alone else self._chunk()
            self._engine.expect(run.program, waiting[expected : size + AHEAD])
            expected = max(expected, len(waiting[: size + AHEAD]))
            self._stall.ask(run.program, len(waiting[:size]))
            self._run_chunk(run, waiting[:size])
            expected -= len(waiting[:size])
            del waiting[:size]
            while run.alone and self._steps_made() < self._given:
                time.sleep(ALONE_S)

    def _take_more(self, run: job_pb2.RunSteps, waiting: list[Batch]) -> None:
        """Adds the steps of the next queued instructions, as long as they run the same program on the same data."""
        gathers = not (run.alone or run.HasField("chunk"))
        while gathers and len(waiting) < self._chunk() + AHEAD and not self._next:
            try:
                message = self._link.receive(0.0)
            except queue.Empty:
                return
            more = message.instruction.run if message is not None and message.instruction.HasField("run") else None
            if (
                more is None
                or more.alone
                or more.HasField("chunk")
                or (more.program, more.data, more.results) != (run.program, run.data, run.results)
            ):
                self._next.append(message)
                return
            waiting.extend(self._batches(more))

    def _batches(self, run: job_pb2.RunSteps) -> list[Batch]:
        """Returns the batches of bound data as the engine knows them."""
        if run.data not in self._bound:
            raise ProtocolError(f"Expected batches of bound arrays. Received: data={run.data}")
        return [(run.data, self._indices(batch)) for batch in run.batches]

    def _indices(self, batch: job_pb2.Batch) -> Buffer:
        if not batch.HasField("blob"):
            return batch.indices
        rows = self._store.open(batch.blob)
        self._send(job_pb2.Event(released=job_pb2.Released(blobs=[batch.blob])))
        return rows

    def _chunk(self) -> int:
        return max(1, min(MAX_CHUNK, int(self._rate * CHUNK_S)))

    def _run_chunk(self, run: job_pb2.RunSteps, batches: list[Batch]) -> None:
        began_s = time.perf_counter()
        deliver = functools.partial(self._deliver, self._given) if run.results else None
        self._given += len(batches)
        self._engine.run(run.program, batches, deliver)
        rate = len(batches) / max(1e-9, time.perf_counter() - began_s)
        # The first steps are slow (tracing, caches): the estimate must rise quickly, but by at most a factor of 4.
        self._rate = min(rate, 4 * max(self._rate, 1 / CHUNK_S))
        # The answer to the next instruction may tell it as well, and a message takes time.
        if time.monotonic() - self._told_s >= POLL_S:
            self._tell_progress()

    def _deliver(self, before: int, number: int, outputs: bytes) -> None:
        if self._rank == 0:
            # With a step's results the client hears that it has been made.
            self._told = max(self._told, before + number + 1)
            results = job_pb2.Results(step=before + number, outputs=self._store.payload(outputs))
            event = job_pb2.Event(results=results)
            # The pool has to know of files that the client is to fetch.
            if not results.outputs.HasField("blob") and self._link.send_directly(event):
                self._tell_pool(now=False)
            else:
                self._pool_told = self._told
                self._send(event)

    def _drain(self, instruction: job_pb2.Instruction) -> None:
        drain, began_s = instruction.drain, time.perf_counter()
        drained = self._drained(drain)
        if self._rank:
            # The pool passes on rank 0's state, and of other ranks their rows of variables.
            drained = job_pb2.Drained(state=job_pb2.State(rows=drained.state.rows))
        drained.serial, drained.steps = drain.serial, self._engine.steps()
        self._told = max(self._told, drained.steps)
        # An engine whose workers first finish queued steps reports its own time.
        drained.seconds = drained.seconds or time.perf_counter() - began_s
        if drain.what == job_pb2.Drain.WHAT_ALL:
            drained.workers.extend(self._usage())
        if drain.direct:
            # The client has asked for little, and gets each worker's account where there is room.
            if drained.ByteSize() > MAX_BYTES // 2:
                drained.ClearField("workers")
            self._link.answer_directly(job_pb2.Event(drained=drained))
        else:
            self._pool_told = max(self._pool_told, drained.steps)
            self._send(job_pb2.Event(drained=drained))

    def _drained(self, drain: job_pb2.Drain) -> job_pb2.Drained:
        """Returns the requested state of all variables that have values."""
        self._assigned.require(drain.program, drain.variables)
        assigned = self._assigned.assigned(drain.program)
        if assigned is None or drain.variables:
            return self._engine.drain(drain.program, drain.what, drain.variables)
        return self._engine.drain(drain.program, job_pb2.Drain.WHAT_ALL, assigned) if assigned else job_pb2.Drained()

    def _close(self, _: job_pb2.Instruction) -> None:
        process = job_pb2.ProcessUsage(rank=self._rank, samples=self._link.series.samples())
        self._send(job_pb2.Event(closed=job_pb2.Closed(workers=self._usage(), processes=[process])))

    def _usage(self) -> list[job_pb2.WorkerUsage]:
        usages = []
        for account in self._engine.usage():
            usage = job_pb2.WorkerUsage()
            usage.CopyFrom(account)
            usage.wait_s = usage.wait_s or self._wait_s
            usage.peak_memory_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            usages.append(usage)
        return usages

    def _look(self, sample: job_pb2.Sample) -> float:
        """Reports a stall of the engine to the pool; returns for how long a program's first step has been idle.

        Called from another thread, while the main thread may be in a step.
        """
        try:
            waited_s = self._stall.look(self._engine.steps(), time.monotonic(), sample.cores)
        except Exception:  # the error that ended the work; the main thread reports it
            return 0.0
        if waited_s is not None and not self._stalled:
            self._tell_stalled(waited_s)
        return self._stall.idle_s

    def _tell_stalled(self, waited_s: float) -> None:
        self._stalled = True
        # Writes each thread's stack to the job's log.
        faulthandler.dump_traceback(sys.stderr, all_threads=True)
        self._fail(
            WorkerLostError(
                f"Rank {self._rank} has finished no step for {waited_s:.0f} s, after {self._engine.steps()} steps. Its machine "
                "may be overloaded, or its connection to the other workers lost; `fdt logs JOB` shows where its threads are."
            )
        )

    def _fail(self, error: Exception) -> None:
        # The engine may raise the same error again.
        with contextlib.suppress(Exception):
            self._steps_made()
        failed = failure.described(error, self._rank, time.time(), self._made, self._given)
        self._send(job_pb2.Event(failed=failed))

    def _send(self, event: job_pb2.Event) -> None:
        self._link.send(worker_pb2.WorkerEvent(event=event))


def _data_of(data: int, group: int) -> int:
    """Returns the number by which the engine knows a group of a chunk's arrays."""
    return data | group << 32


def _in_turn(run: job_pb2.RunSteps) -> list[Batch]:
    """Returns a chunk's batches as the engine knows them."""
    chunk, batches, begins = run.chunk, list[Batch](), [0] * run.chunk.groups
    # Of the first array of each group.
    rows = [array.tensor.shape[0] for array in chunk.arrays[:: len(chunk.arrays) // chunk.groups]]
    for batch in run.batches:
        if batch.group >= chunk.groups or begins[batch.group] + batch.following > rows[batch.group]:
            raise ProtocolError(
                f"Expected rows of the chunk. Received: group={batch.group}, following={batch.following}, rows={rows}"
            )
        begin = begins[batch.group]
        begins[batch.group] += batch.following
        batches.append((_data_of(run.data, batch.group), array.array("q", range(begin, begins[batch.group])).tobytes()))
    return batches


def _tensorflow_version() -> str:
    module = sys.modules.get("tensorflow")
    return getattr(module, "__version__", "")


def _store(config: WorkerConfig, link: Link) -> BlobStore:
    directory = Path(config.store)
    if not config.joined:
        return WorkerStore(directory, Path(config.folder))
    return HostStore(directory, WorkerBlobClient(link.channel, config.timing), config.timing.chunk_s)


def work(
    engine_class: Callable[[], Engine],
    secret: int,
    attached: Callable[[], None] = lambda: None,
    gateway: Gateway | None = None,
    memories: socket.socket | None = None,
    listener: Listener | None = None,
) -> None:
    """Runs a worker in this process, configured by its environment; returns when its job has ended.

    Args:
        engine_class: Makes the engine.
        secret: The descriptor of a pipe with the secret to attach with.
        attached: See `Worker`.
        gateway: See `Worker`.
        memories: See `Worker`.
        listener: Where the client may connect; None if it may not.
    """
    config = WorkerConfig.from_environment(os.environ)
    # A crash inside a library leaves the threads' stacks in the log.
    faulthandler.enable(sys.stderr, all_threads=True)
    # Processes that the engine starts inherit the environment, and must not act as workers.
    del os.environ["FDT_WORKER"]
    engine = engine_class()
    if gateway is not None:
        gateway.serve()
    link = Link(config, secret, gateway, listener)
    ready = worker_pb2.Ready(worker=config.name, pid=os.getpid(), tensorflow=_tensorflow_version())
    link.send(worker_pb2.WorkerEvent(ready=ready))
    link.start()
    Worker(engine, link, _store(config, link), config.timing, attached, gateway, config, memories).serve()
    link.close()
