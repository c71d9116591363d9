"""Does what `fdt.jobs` decides: one thread takes events, asks the state what to do, and does it."""

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from fdt import jobs, lifecycle
from fdt.blobs import STORE, BlobStore
from fdt.config import ServeConfig
from fdt.errors import CapacityError, FdtError, ProtocolError
from fdt.processes import Processes, last_line
from fdt.relay import JobRelay, Outbox
from fdt.runtime import Launcher, Rendezvous
from fdt.versions import versions
from fdt.worker import WorkerConfig
from protos import job_pb2, worker_pb2

# Log files of workers that are kept.
_MAX_LOGS = 200


class Supervisor:
    """The pool's workers and jobs."""

    def __init__(
        self, config: ServeConfig, launchers: Mapping[str, Launcher], directory: Path, socket: str, secret: str
    ) -> None:
        """Starts nothing yet.

        Args:
            config: The pool's.
            launchers: For each mode that is served.
            directory: For blobs and logs; the pool's own.
            socket: Where workers attach.
            secret: With what they attach.
        """
        self._config, self._launchers, self._directory = config, launchers, directory
        self._socket, self._secret = socket, secret
        self.store = BlobStore(directory / STORE, config.store_limit_bytes, config.timing.chunk_s)
        (directory / "logs").mkdir(mode=0o700, exist_ok=True)
        # The most that all jobs at once can take.
        most = config.num_workers if config.max_jobs is None else config.max_jobs
        processes = {
            mode: min(config.num_workers, most * launcher.num_processes(config.num_workers))
            for mode, launcher in launchers.items()
        }
        self._state = jobs.PoolState(config.num_workers, processes, config.timing)
        self._processes = Processes(self._exited, directory, config.timing)
        # Guards `_state` and the tables below; held while instructions are done, so that all see them done.
        self._lock = threading.Lock()
        self._events: queue.SimpleQueue[lifecycle.Event | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="fdt-pool", daemon=True)
        self._num_jobs = 0
        self._opened: dict[str, job_pb2.OpenJob] = {}
        self._relays: dict[str, JobRelay] = {}
        self._rendezvous: dict[str, Rendezvous] = {}
        self._outboxes: dict[str, Outbox] = {}
        self._heard_s: dict[str, float] = {}
        self._checked_s = time.monotonic()
        # When a process that was asked to end is terminated, and later killed.
        self._patience: dict[str, tuple[float, bool]] = {}
        self._do: dict[type[lifecycle.Instruction], Callable[..., None]] = {
            lifecycle.StartWorker: self._start_worker,
            lifecycle.EndWorker: self._end_worker,
            lifecycle.KillWorker: lambda do: self._processes.kill(do.worker),
            lifecycle.Assign: self._assign,
            lifecycle.TellQueued: self._tell_queued,
            lifecycle.TellStarted: self._tell_started,
            lifecycle.TellFailed: self._tell_failed,
            lifecycle.EndJob: self._end_job,
        }

    def start(self) -> None:
        """Begins to warm workers."""
        self._thread.start()

    def stop(self) -> None:
        """Ends all jobs and processes."""
        self._events.put(None)
        if self._thread.ident is None:
            return
        self._thread.join(3 * self._config.timing.stop_s)

    # ---- for the servicers ------------------------------------------------------------------------------------------

    def post(self, event: lifecycle.Event) -> None:
        """Takes an event, from any thread."""
        self._events.put(event)

    def submit(self, opening: job_pb2.OpenJob) -> JobRelay:
        """Takes a new job in.

        Raises:
            CapacityError: The pool is stopping.
        """
        with self._lock:
            if not self._thread.is_alive():
                raise CapacityError("The pool is stopping.")
            self._num_jobs += 1
            name = f"job-{self._num_jobs}"
            relay = self._relays[name] = JobRelay(name)
            self._opened[name] = opening
        launcher = self._launchers.get(opening.mode)
        processes = launcher.num_processes(opening.num_workers) if launcher and opening.num_workers else 0
        self.post(lifecycle.Submitted(time.time(), name, opening.mode, opening.num_workers, processes, opening.script))
        return relay

    def attach(self, worker: str) -> Outbox:
        """Returns what is to be sent to a worker that has just attached.

        Raises:
            ProtocolError: There is no such worker, or it had attached before.
        """
        with self._lock:
            if worker not in self._outboxes or worker in self._heard_s:
                raise ProtocolError(f"The pool waits for no such worker. Received: worker={worker}")
            self._heard_s[worker] = time.monotonic()
            return self._outboxes[worker]

    def heard(self, worker: str) -> None:
        """Takes note that a worker lives."""
        self._heard_s[worker] = time.monotonic()

    def serving(self, worker: str) -> tuple[JobRelay, int] | None:
        """Returns the job that a worker serves, and its rank in it."""
        with self._lock:
            found = self._state.workers.get(worker)
            relay = self._relays.get(found.job) if found is not None and found.job else None
            return (relay, found.rank) if found is not None and relay is not None else None

    def list_jobs(self) -> list[tuple[jobs.Job, int]]:
        """Returns jobs and the steps they have done, oldest first."""
        with self._lock:
            return [(job, self._steps(job.name)) for job in self._state.jobs.values()]

    def _steps(self, job: str) -> int:
        relay = self._relays.get(job)
        return relay.steps if relay else 0

    def load(self) -> tuple[int, int]:
        """Returns how many processes are warm and how many workers are free."""
        with self._lock:
            return self._state.num_warm, self._state.num_workers - self._state.num_busy

    def logs(self, job: str) -> list[Path]:
        """Returns the log files of a job's workers, by rank.

        Raises:
            ProtocolError: No such job.
        """
        with self._lock:
            if job not in self._state.jobs:
                raise ProtocolError(f"The pool knows no such job; `fdt jobs` lists them. Received: job={job}")
            return [self._log(worker) for worker in self._state.jobs[job].workers]

    # ---- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        self._apply(lifecycle.Tick(time.time()))
        while True:
            try:
                event = self._events.get(timeout=self._pause_s())
            except queue.Empty:
                event = lifecycle.Tick(time.time())
            if event is None:
                break
            self._apply(event)
            self._check_processes()
        # In this thread: the kernel kills workers when the thread that started them ends.
        self._shut_down()

    def _pause_s(self) -> float:
        deadline_s = self._state.next_deadline_s()
        pause_s = self._config.timing.heartbeat_s
        return pause_s if deadline_s is None else max(0.001, min(pause_s, deadline_s - time.time()))

    def _apply(self, event: lifecycle.Event) -> None:
        with self._lock:
            for instruction in self._state.handle(event):
                self._do[type(instruction)](instruction)
            if isinstance(event, lifecycle.WorkerExited):
                self._forget_worker(event.worker)

    def _check_processes(self) -> None:
        now_s = time.monotonic()
        if now_s - self._checked_s < self._config.timing.heartbeat_s / 2:
            return
        # After a pause of this process itself (a laptop's lid), everybody seems silent.
        asleep = now_s - self._checked_s > self._config.timing.heartbeat_limit_s / 2
        self._checked_s = now_s
        for worker, heard_s in list(self._heard_s.items()):
            if asleep:
                self._heard_s[worker] = now_s
            elif now_s - heard_s > self._config.timing.heartbeat_limit_s:
                self.post(lifecycle.WorkerSilent(time.time(), worker, now_s - heard_s))
        for worker, (when_s, terminated) in list(self._patience.items()):
            if now_s >= when_s:
                (self._processes.kill if terminated else self._processes.terminate)(worker)
                self._patience[worker] = now_s + self._config.timing.stop_s, True

    def _shut_down(self) -> None:
        with self._lock:
            for job, relay in list(self._relays.items()):
                if job in self._opened:
                    failed = job_pb2.Failed(error="JobCancelledError", message="The pool was stopped.", rank=-1)
                    relay.tell(job_pb2.Event(failed=failed))
                    self._end_job(lifecycle.EndJob(job))
            for outbox in self._outboxes.values():
                outbox.close()
        self._processes.close()

    def _exited(self, worker: str, status: int) -> None:
        self.post(lifecycle.WorkerExited(time.time(), worker, status, last_line(self._log(worker))))

    def _forget_worker(self, worker: str) -> None:
        self._heard_s.pop(worker, None)
        self._patience.pop(worker, None)
        outbox = self._outboxes.pop(worker, None)
        if outbox is not None:
            outbox.close()

    # ---- instructions -----------------------------------------------------------------------------------------------

    def _start_worker(self, do: lifecycle.StartWorker) -> None:
        self._outboxes[do.worker] = Outbox()
        self._prune_logs()
        config = WorkerConfig(
            socket=self._socket,
            secret=self._secret,
            name=do.worker,
            store=str(self.store.directory),
            timing=self._config.timing,
        )
        engine = self._launchers[do.mode].engine
        try:
            self._processes.start(do.worker, engine, config.environment(), self._log(do.worker))
        except OSError as error:
            self.post(lifecycle.WorkerExited(time.time(), do.worker, 127, str(error)))

    def _end_worker(self, do: lifecycle.EndWorker) -> None:
        self._outboxes[do.worker].close()
        self._patience[do.worker] = time.monotonic() + self._config.timing.stop_s, False

    def _assign(self, do: lifecycle.Assign) -> None:
        opening, relay = self._opened[do.job], self._relays[do.job]
        try:
            self._rendezvous[do.job] = self._launchers[opening.mode].rendezvous(opening.num_workers)
            assignments = [self._assignment(do.job, rank) for rank in range(len(do.workers))]
        except Exception as error:  # whatever a launcher meets, it ends the job and not the pool
            name = type(error).__name__ if isinstance(error, FdtError) else "WorkerError"
            message = f"The workers of job {do.job} could not be brought together: {error}"
            self.post(lifecycle.JobRefused(time.time(), do.job, name, message))
            return
        outboxes = [self._outboxes[worker] for worker in do.workers]
        for outbox, assignment in zip(outboxes, assignments, strict=True):
            outbox.put(assignment)
        relay.assign(outboxes)

    def _assignment(self, job: str, rank: int) -> bytes:
        opening = self._opened[job]
        assignment = worker_pb2.Assignment(
            job=job,
            rank=rank,
            num_workers=opening.num_workers,
            num_threads=max(1, len(os.sched_getaffinity(0)) // self._config.num_workers),
            environment=self._rendezvous[job].environment(rank),
            options=opening.options,
        )
        return worker_pb2.WorkerInstruction(assignment=assignment).SerializeToString()

    def _tell_queued(self, do: lifecycle.TellQueued) -> None:
        queued = job_pb2.Queued(position=do.position, reason=do.reason)
        self._relays[do.job].tell(job_pb2.Event(queued=queued))

    def _tell_started(self, do: lifecycle.TellStarted) -> None:
        started = job_pb2.Started(job=do.job, num_workers=self._opened[do.job].num_workers, versions=versions())
        self._relays[do.job].tell(job_pb2.Event(started=started))

    def _tell_failed(self, do: lifecycle.TellFailed) -> None:
        failed = job_pb2.Failed(error=do.error, message=do.message, rank=do.rank, time_s=do.time_s)
        self._relays[do.job].tell(job_pb2.Event(failed=failed))

    def _end_job(self, do: lifecycle.EndJob) -> None:
        relay = self._relays[do.job]
        self.store.release(do.job)
        for ref in relay.passing_blobs():
            self.store.drop(ref)
        relay.end()
        rendezvous = self._rendezvous.pop(do.job, None)
        if rendezvous is not None:
            with contextlib.suppress(OSError):
                rendezvous.close()
        self._opened.pop(do.job, None)
        for job in [job for job in self._relays if job not in self._state.jobs and job not in self._opened]:
            del self._relays[job]

    # ---- files ------------------------------------------------------------------------------------------------------

    def _log(self, worker: str) -> Path:
        return self._directory / "logs" / f"{worker}.log"

    def _prune_logs(self) -> None:
        logs = sorted((self._directory / "logs").iterdir(), key=lambda log: log.stat().st_mtime)
        for log in logs[: max(0, len(logs) - _MAX_LOGS)]:
            if log.stem not in self._outboxes:
                log.unlink()
