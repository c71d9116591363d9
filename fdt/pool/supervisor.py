"""Does what `fdt.pool.state` decides: one thread takes events, asks the state what to do, and does it."""

import contextlib
import dataclasses
import functools
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from fdt.blobs import STORE, BlobStore
from fdt.config import ServeConfig
from fdt.errors import CapacityError, FdtError, ProtocolError
from fdt.pool import hosts, isolation, lifecycle
from fdt.pool.hosts import Host, JoinedHost, OwnHost
from fdt.pool.jobs import Job
from fdt.pool.lifecycle import OWN_HOST
from fdt.pool.limits import check_name
from fdt.pool.meeting import MeetingPlaces
from fdt.pool.processes import Processes, last_words
from fdt.pool.relay import JobRelay, Outbox, Room
from fdt.pool.state import PoolState
from fdt.pool.worker import MAX_FAILURE
from fdt.runtime import Launcher, Placement
from fdt.versions import host_versions, versions
from protos import blobs_pb2, host_pb2, job_pb2, worker_pb2

# Log files of workers that are kept.
_MAX_LOGS = 200


@dataclasses.dataclass(frozen=True)
class WorkerSnapshot:
    """A worker process; `silent_s` is how long nothing has been heard of it."""

    name: str
    host: str
    state: str
    job: str
    silent_s: float
    sample: job_pb2.Sample | None


@dataclasses.dataclass(frozen=True)
class JobSnapshot:
    """A job; `workers` are their accounts as of the last complete drain."""

    name: str
    mode: str
    state: str
    steps: int
    workers: Sequence[job_pb2.WorkerUsage]


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """What a pool knows at one moment."""

    jobs: Sequence[JobSnapshot]
    workers: Sequence[WorkerSnapshot]


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
        self._config, self._launchers, self._secret = config, launchers, secret
        self._logs = directory / "logs"
        self._logs.mkdir(mode=0o700, exist_ok=True)
        self.limits = limits = config.limits
        self.store = BlobStore(directory / STORE, config.store_limit_bytes, config.timing.chunk_s, limits)
        self.meetings = MeetingPlaces()
        modes = {mode: each.num_processes for mode, each in launchers.items()}
        self._state = PoolState(config.num_workers, modes, config.timing, config.max_jobs, limits)
        self._processes = Processes(self._exited, directory, config.timing, walls=config.walls)
        own = OwnHost(config, launchers, self._processes, self.store, self._logs, socket, secret)
        # Guards `_state` and the tables below; held while instructions are done, so that all see them done.
        self._lock = threading.Lock()
        # Which network worker processes on this machine see, in one line.
        self.network = isolation.describe(own.networks, own.unisolated)
        self._events: queue.SimpleQueue[lifecycle.Event | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="fdt-pool", daemon=True)
        self._unread = Room(limits.unread_bytes_in_all)
        self._num_jobs = 0
        self._opened: dict[str, job_pb2.OpenJob] = {}
        self._relays: dict[str, JobRelay] = {}
        self._hosts: dict[str, Host] = {OWN_HOST: own}
        self._joined: dict[str, JoinedHost] = {}
        self._num_joined = 0
        # Of each worker.
        self._host_of: dict[str, Host] = {}
        self._outboxes: dict[str, Outbox] = {}
        self._heard_s: dict[str, float] = {}
        self._samples: dict[str, job_pb2.Sample] = {}
        # Of each job.
        self._accounts: dict[str, list[job_pb2.WorkerUsage]] = {}
        self._ended_steps: dict[str, int] = {}
        self._checked_s = time.monotonic()
        # When a process that was asked to end is terminated, and later killed.
        self._patience: dict[str, tuple[float, bool]] = {}
        self._do: dict[type[lifecycle.Instruction], Callable[..., None]] = {
            lifecycle.StartWorker: self._start_worker,
            lifecycle.EndWorker: self._end_worker,
            lifecycle.KillWorker: lambda do: self._host_of[do.worker].kill(do.worker),
            lifecycle.WelcomeHost: self._welcome_host,
            lifecycle.DropHost: self._drop_host,
            lifecycle.Say: lambda do: print(f"fdt: {do.line}", file=sys.stderr, flush=True),
            lifecycle.Assign: self._assign,
            lifecycle.TellQueued: self._tell_queued,
            lifecycle.TellStarted: self._tell_started,
            lifecycle.TellFailed: self._tell_failed,
            lifecycle.EndJob: self._end_job,
        }

        self._ended = threading.Event()
        self.error: BaseException | None = None

    def start(self) -> None:
        """Begins to warm workers."""
        self._thread.start()

    def wait(self) -> None:
        """Waits until the pool has ended.

        Raises:
            Exception: It ended because of this one.
        """
        self._ended.wait()
        if self.error is not None:
            raise self.error

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
            CapacityError: Its names are too long, or the pool is stopping.
        """
        check_name("The path of a script", opening.script, self.limits.script_bytes)
        check_name("The name of a mode", opening.mode, self.limits.name_bytes)
        with self._lock:
            if not self._thread.is_alive():
                raise CapacityError("The pool is stopping.")
            launcher = self._launchers.get(opening.mode)
            needs_pool = launcher is not None and launcher.needs_pool(opening.options)
            self._num_jobs += 1
            name = f"job-{self._num_jobs}"
            relay = self._relays[name] = JobRelay(name, self.limits, self._unread)
            self._opened[name] = opening
        self.post(lifecycle.Submitted(time.time(), name, opening.mode, opening.num_workers, opening.script, needs_pool))
        return relay

    def join(self, hello: host_pb2.Hello) -> JoinedHost:
        """Takes a new host in.

        Raises:
            UsageError: Not this one; see `fdt.pool.hosts.admit`.
            VersionError: It has other versions.
            CapacityError: The pool is stopping.
        """
        with self._lock:
            if not self._thread.is_alive():
                raise CapacityError("The pool is stopping.")
            hosts.admit(hello, self._config, host_versions(), self._joined.values())
            self._num_joined += 1
            name = f"host-{self._num_joined}"
            outbox = Outbox(self.limits.unread_bytes, None, functools.partial(self._host_full, name))
            host = JoinedHost(name, hello, outbox)
            self._hosts[host.name] = self._joined[host.name] = host
        self.post(lifecycle.HostJoined(time.time(), host.name, host.label, host.num_workers))
        return host

    def joined_hosts(self) -> list[str]:
        """Returns what a person calls the hosts that have joined, and what they offer."""
        with self._lock:
            return [f"{host.label}, {host.num_workers} worker(s)" for host in self._joined.values()]

    def _host_full(self, host: str, bound: str) -> None:
        reason = f"was sent away: it does not take what the pool sends, and no more than {bound} are kept for it"
        self.post(lifecycle.HostGone(time.time(), host, reason))

    def exited_on(self, host: JoinedHost, end: host_pb2.WorkerExit) -> None:
        """Takes note of the end of a process on a host that joined, and keeps its log."""
        if self._host_of.get(end.worker) is host:
            log = self._log(end.worker)
            with _said_only():
                log.write_bytes(end.log)
            self.post(lifecycle.WorkerExited(time.time(), end.worker, end.status, last_words(log)))

    def drop(self, refs: Sequence[blobs_pb2.BlobRef]) -> None:
        """Deletes states that have served, on all hosts."""
        if refs:
            for host in list(self._hosts.values()):
                host.drop(refs)

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

    def heard(self, worker: str, sample: job_pb2.Sample | None = None) -> None:
        """Takes note that a worker lives, and of what it used."""
        with self._lock:
            # One whose process has ended may still be heard of.
            if worker not in self._heard_s:
                return
            self._heard_s[worker] = time.monotonic()
            if sample is not None and sample.ByteSize() <= self.limits.account_bytes:
                self._samples[worker] = sample

    def adopt(self, worker: str, refs: Sequence[blobs_pb2.BlobRef]) -> None:
        """Takes blobs, which a worker of this machine has written into its own folder, into the store.

        Raises:
            ProtocolError: What is there is not what the worker says.
        """
        folder = self._processes.folder(worker)
        # A folder that is gone went with its worker, whose end is told.
        if refs and isinstance(self._host_of.get(worker), OwnHost) and folder.exists():
            for ref in refs:
                self.store.adopt(ref, folder)

    def host_of(self, worker: str) -> str:
        """Returns what a person calls the host of a worker; "" for the pool's own machine."""
        host = self._host_of.get(worker)
        return host.label if isinstance(host, JoinedHost) else ""

    def snapshot(self) -> Snapshot:
        """Returns what the pool knows at this moment."""
        now_s = time.monotonic()
        with self._lock:
            workers = [
                WorkerSnapshot(
                    worker.name,
                    self.host_of(worker.name),
                    worker.state.name.lower(),
                    worker.job or "",
                    now_s - self._heard_s[worker.name],
                    self._samples.get(worker.name),
                )
                for worker in self._state.workers.values()
                if worker.name in self._heard_s
            ]
            found = [
                JobSnapshot(
                    job.name, job.mode, job.state.value, self._steps(job.name), self._accounts.get(job.name, [])
                )
                for job in self._state.jobs.values()
            ]
        return Snapshot(found, workers)

    def account(self, job: str, usage: Sequence[job_pb2.WorkerUsage]) -> None:
        """Takes note of what the workers of a job did so far, unless it is too much to be kept for long."""
        if sum(each.ByteSize() for each in usage) > self.limits.account_bytes * len(usage):
            return
        with self._lock:
            self._accounts = {known: kept for known, kept in self._accounts.items() if known in self._state.jobs}
            self._accounts[job] = list(usage)

    def serving(self, worker: str) -> tuple[JobRelay, int] | None:
        """Returns the job that a worker serves, and its rank in it."""
        with self._lock:
            found = self._state.workers.get(worker)
            relay = self._relays.get(found.job) if found is not None and found.job else None
            return (relay, found.rank) if found is not None and relay is not None else None

    def list_jobs(self) -> list[tuple[Job, int]]:
        """Returns jobs and the steps they have done, oldest first."""
        with self._lock:
            return [(job, self._steps(job.name)) for job in self._state.jobs.values()]

    def _steps(self, job: str) -> int:
        relay = self._relays.get(job)
        return relay.steps if relay else self._ended_steps.get(job, 0)

    def load(self) -> tuple[int, int, int]:
        """Returns how many workers there are, how many of them are free, and how many processes are warm."""
        with self._lock:
            num_workers = self._state.num_workers
            return num_workers, num_workers - self._state.num_busy, self._state.num_warm

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
        """Takes events until the pool is stopped. What nobody has a policy for ends the pool, and is raised by `wait`."""
        try:
            self._take_events()
        except BaseException as error:
            self.error = error
            traceback.print_exc()
        try:
            # In this thread: the kernel kills workers when the thread that started them ends.
            self._shut_down()
        finally:
            self._ended.set()

    def _take_events(self) -> None:
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

    def _check_hosts(self, now_s: float, asleep: bool) -> None:
        for host in list(self._joined.values()):
            silent_s = now_s - host.heard_s
            if asleep:
                host.heard_s = now_s
            elif silent_s > self._config.timing.heartbeat_limit_s:
                reason = f"has stopped answering: nothing was heard from it for {silent_s:.0f} s"
                self.post(lifecycle.HostGone(time.time(), host.name, reason))

    def _outlived(self, worker: str, heard_s: float) -> bool:
        """Whether a silent worker's host was heard of after it: if not, the host is silent, and will be named as such."""
        host = self._host_of.get(worker)
        return not isinstance(host, JoinedHost) or host.heard_s > heard_s + self._config.timing.heartbeat_limit_s / 2

    def _check_processes(self) -> None:
        now_s = time.monotonic()
        if now_s - self._checked_s < self._config.timing.heartbeat_s / 2:
            return
        # After a pause of this process itself (a laptop's lid), everybody seems silent.
        asleep = now_s - self._checked_s > self._config.timing.heartbeat_limit_s / 2
        self._checked_s = now_s
        # Before their workers: these are silent because their host is.
        self._check_hosts(now_s, asleep)
        for worker, heard_s in list(self._heard_s.items()):
            if asleep:
                self._heard_s[worker] = now_s
            elif now_s - heard_s > self._config.timing.heartbeat_limit_s and self._outlived(worker, heard_s):
                self.post(lifecycle.WorkerSilent(time.time(), worker, now_s - heard_s))
        for worker, (when_s, terminated) in list(self._patience.items()):
            if now_s >= when_s:
                host = self._host_of[worker]
                (host.kill if terminated else host.terminate)(worker)
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
            for host in self._joined.values():
                host.outbox.close()
        self._processes.close()

    def _exited(self, worker: str, status: int) -> None:
        self.post(lifecycle.WorkerExited(time.time(), worker, status, last_words(self._log(worker))))

    def _forget_worker(self, worker: str) -> None:
        self._heard_s.pop(worker, None)
        self._samples.pop(worker, None)
        self._patience.pop(worker, None)
        self._host_of.pop(worker, None)
        outbox = self._outboxes.pop(worker, None)
        if outbox is not None:
            outbox.close()

    # ---- instructions -----------------------------------------------------------------------------------------------

    def _start_worker(self, do: lifecycle.StartWorker) -> None:
        self._outboxes[do.worker] = Outbox(2 * self.limits.untaken_bytes)
        host = self._host_of[do.worker] = self._hosts[do.host]
        with _said_only():
            self._prune_logs()
        try:
            if do.host != OWN_HOST:
                text = f"(on host {self._joined[do.host].label}; its log comes when the worker has ended)\n"
                self._log(do.worker).write_text(text)
            host.start(do.worker, do.mode)
        except OSError as error:
            self.post(lifecycle.WorkerExited(time.time(), do.worker, 127, str(error)))

    def _welcome_host(self, do: lifecycle.WelcomeHost) -> None:
        welcome = host_pb2.Welcome(
            modes=self._launchers,
            secret=self._secret,
            timing=dataclasses.asdict(self._config.timing),
            address=self._hosts[OWN_HOST].place.address,
        )
        self._joined[do.host].tell(welcome=welcome)

    def _drop_host(self, do: lifecycle.DropHost) -> None:
        host = self._hosts.pop(do.host)
        self._joined.pop(do.host, None)
        host.dismiss(f"This host {do.reason}; the pool goes on without it.")
        for worker in [worker for worker, its_host in self._host_of.items() if its_host is host]:
            self._forget_worker(worker)

    def _end_worker(self, do: lifecycle.EndWorker) -> None:
        self._outboxes[do.worker].close()
        self._patience[do.worker] = time.monotonic() + self._config.timing.stop_s, False

    def _assign(self, do: lifecycle.Assign) -> None:
        opening, relay = self._opened[do.job], self._relays[do.job]
        places = self._state.jobs[do.job].places
        workers = tuple(self._hosts[host].place for host, number in places for _ in range(number))
        placement = Placement(workers, self._hosts[OWN_HOST].place, places[0] == (OWN_HOST, 0))
        try:
            if self._launchers[opening.mode].tunnels and len(places) > 1 and not self._config.open_servers:
                hosts.check_tunnels(self._hosts[host] for host, _ in places)
                placement = dataclasses.replace(placement, tunnelled=True)
            meeting = self.meetings.open(do.job, opening.num_workers)
            assignments = [
                self._assignment(do.job, rank, worker, placement, meeting) for rank, worker in enumerate(do.workers)
            ]
        except Exception as error:  # whatever a launcher meets, it ends the job and not the pool
            name = type(error).__name__ if isinstance(error, FdtError) else "WorkerError"
            message = f"The workers of job {do.job} could not be brought together: {error}"
            self.post(lifecycle.JobRefused(time.time(), do.job, name, message))
            return
        outboxes = [self._outboxes[worker] for worker in do.workers]
        for outbox, assignment in zip(outboxes, assignments, strict=True):
            outbox.put(assignment)
        relay.assign(outboxes)

    def _assignment(self, job: str, rank: int, worker: str, placement: Placement, meeting: str) -> bytes:
        opening = self._opened[job]
        assignment = worker_pb2.Assignment(
            job=job,
            rank=rank,
            num_workers=opening.num_workers,
            num_threads=self._host_of[worker].num_threads,
            environment=self._launchers[opening.mode].environment(placement, rank),
            options=opening.options,
            meeting=meeting,
            members=[place.address for place, _ in placement.processes] if placement.tunnelled else [],
        )
        return worker_pb2.WorkerInstruction(assignment=assignment).SerializeToString()

    def _tell_queued(self, do: lifecycle.TellQueued) -> None:
        queued = job_pb2.Queued(position=do.position, reason=do.reason)
        self._relays[do.job].tell(job_pb2.Event(queued=queued))

    def _tell_started(self, do: lifecycle.TellStarted) -> None:
        started = job_pb2.Started(job=do.job, num_workers=self._opened[do.job].num_workers, versions=versions())
        self._relays[do.job].tell(job_pb2.Event(started=started))

    def _tell_failed(self, do: lifecycle.TellFailed) -> None:
        failed = job_pb2.Failed(error=do.error, message=do.message[:MAX_FAILURE], rank=do.rank, time_s=do.time_s)
        self._relays[do.job].tell(job_pb2.Event(failed=failed))

    def _end_job(self, do: lifecycle.EndJob) -> None:
        relay = self._relays.pop(do.job)
        self.store.release(do.job)
        with _said_only():
            self.drop(relay.passing_blobs())
        relay.end()
        self.meetings.close(do.job)
        self._ended_steps = {job: steps for job, steps in self._ended_steps.items() if job in self._state.jobs}
        self._ended_steps[do.job] = relay.steps
        self._opened.pop(do.job, None)

    # ---- files ------------------------------------------------------------------------------------------------------

    def _log(self, worker: str) -> Path:
        return self._logs / f"{worker}.log"

    def _prune_logs(self) -> None:
        logs = sorted(self._logs.iterdir(), key=lambda log: log.stat().st_mtime)
        for log in logs[: max(0, len(logs) - _MAX_LOGS)]:
            if log.stem not in self._outboxes:
                log.unlink()


@contextlib.contextmanager
def _said_only() -> Iterator[None]:
    """Says what the disk or the system refuses, and goes on: a file that stays, or is missing, harms no job."""
    try:
        yield
    except OSError as error:
        print(f"fdt: {error}", file=sys.stderr, flush=True)
