"""Does what `fdt.pool.state` decides: one thread takes events, asks the state what to do, and does it."""

import contextlib
import dataclasses
import functools
import itertools
import queue
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from fdt import records
from fdt.blobs import STORE, BlobStore
from fdt.config import ServeConfig
from fdt.errors import CapacityError, FdtError, ProtocolError
from fdt.pool import hosts, isolation, lifecycle, snapshot
from fdt.pool.assigner import Assigner
from fdt.pool.hosts import Host, JoinedHost, OwnHost
from fdt.pool.jobs import Job, JobState
from fdt.pool.journal import Entry, number_of
from fdt.pool.lifecycle import OWN_HOST
from fdt.pool.limits import check_name, cut
from fdt.pool.logs import LogFolder
from fdt.pool.meeting import MeetingPlaces
from fdt.pool.observations import Observations
from fdt.pool.processes import Processes, last_words, oom_kills
from fdt.pool.relay import JobRelay, Outbox, Room
from fdt.pool.state import PoolState
from fdt.pool.state_folder import StateFolder
from fdt.pool.vigil import Vigil
from fdt.pool.worker import MAX_FAILURE
from fdt.printable import printable
from fdt.runtime import Launcher
from fdt.scheduling.keeper import Keeper
from fdt.v1 import blobs_pb2, host_pb2, job_pb2, worker_pb2
from fdt.versions import host_versions, versions

# Between two looks at how far jobs are, for their curves.
_LOOK_S = 1.0


class Supervisor:
    """The pool's workers and jobs."""

    def __init__(
        self,
        config: ServeConfig,
        launchers: Mapping[str, Launcher],
        directory: Path,
        socket: str,
        secret: str,
        kept: StateFolder | None = None,
    ) -> None:
        """
        Args:
            config: The pool's.
            launchers: For each mode that is served.
            directory: For blobs and logs; the pool's own.
            socket: Where workers attach.
            secret: With what they attach.
            kept: Where the list of jobs is kept; None for nowhere.
        """
        self._kept, entries = kept, kept.entries if kept is not None else ()
        self._config, self._launchers, self._secret = config, launchers, secret
        self._logs = LogFolder(directory / "logs")
        self.limits = limits = config.limits
        self.store = BlobStore(directory / STORE, config.store_limit_bytes, config.timing.chunk_s, limits)
        self.meetings = MeetingPlaces()
        self._assigner = Assigner(config, launchers, self.meetings)
        modes = {mode: each.num_processes for mode, each in launchers.items()}
        before = [entry.job() for entry in entries]
        timing = config.timing
        self._state = PoolState(config.num_workers, modes, timing, config.max_jobs, limits, before, config.placing)
        # Brings hosts, where a scheduler does; set before the start.
        self.keeper: Keeper | None = None
        self._processes = Processes(self._exited, directory, config.timing, walls=config.walls, bounds=config.bounds)
        own = OwnHost(config, launchers, self._processes, self.store, self._logs.path, socket, secret)
        # Guards `_state` and the tables below; held while instructions are done, so that all see them done.
        self._lock = threading.Lock()
        # Which network worker processes on this machine see, in one line.
        self.network = isolation.describe(own.networks, own.unisolated)
        self._events: queue.SimpleQueue[lifecycle.Event | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="fdt-pool", daemon=True)
        self._vigil = Vigil(config.timing, self.post)
        self._unread = Room(limits.unread_bytes_in_all)
        self._num_jobs = max((number_of(job.name) for job in before), default=0)
        self._opened: dict[str, job_pb2.OpenJob] = {}
        self._relays: dict[str, JobRelay] = {}
        self._hosts: dict[str, Host] = {OWN_HOST: own}
        self._joined: dict[str, JoinedHost] = {}
        self._num_joined = 0
        # Of each worker.
        self._host_of: dict[str, Host] = {}
        self._outboxes: dict[str, Outbox] = {}
        # Before the first worker.
        self._oom_kills = oom_kills()
        self.seen, self._looked_s = Observations(limits.account_bytes), 0.0
        # Of each job.
        self._ended_steps = {entry.name: entry.steps for entry in entries}
        # When a process that was asked to end is terminated, and later killed: the first due comes first.
        self._patience: dict[str, tuple[float, bool]] = {}
        self._do: dict[type[lifecycle.Instruction], Callable[..., None]] = {
            lifecycle.StartWorker: self._start_worker,
            lifecycle.EndWorker: self._end_worker,
            lifecycle.KillWorker: lambda do: self._host_of[do.worker].kill(do.worker),
            lifecycle.WelcomeHost: self._welcome_host,
            lifecycle.DropHost: self._drop_host,
            lifecycle.HostWorks: self._host_works,
            lifecycle.WantHosts: self._want_hosts,
            lifecycle.Say: lambda do: records.notice(do.line),
            lifecycle.Assign: self._assign,
            lifecycle.TellQueued: self._tell_queued,
            lifecycle.TellStarted: self._tell_started,
            lifecycle.TellFailed: self._tell_failed,
            lifecycle.TellLeaving: self._tell_leaving,
            lifecycle.TellWanted: self._tell_wanted,
            lifecycle.Stop: lambda _: self._events.put(None),
            lifecycle.EndJob: self._end_job,
            lifecycle.LetGo: lambda do: self.let_go(do.session),
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
        """Queues an event; any thread may call."""
        self._events.put(event)

    def submit(self, opening: job_pb2.OpenJob) -> JobRelay:
        """Adds a job.

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
            relay = self._relays[name] = JobRelay(name, opening.session, self.limits, self._unread)
            self._opened[name] = opening
        self.post(
            lifecycle.Submitted(
                time.time(),
                name,
                opening.mode,
                opening.num_workers,
                opening.script,
                needs_pool,
                opening.session,
                opening.least_workers,
            )
        )
        return relay

    def join(self, hello: host_pb2.Hello) -> JoinedHost:
        """Adds a host.

        Raises:
            UsageError: Not this one; see `fdt.pool.hosts.admit`.
            VersionError: It has other versions.
            CapacityError: The pool is stopping.
        """
        with self._lock:
            if not self._thread.is_alive():
                raise CapacityError("The pool is stopping.")
            hosts.admit(hello, self._config, host_versions(), self._joined.values(), time.time())
            self._num_joined += 1
            name = f"host-{self._num_joined}"
            outbox = Outbox(self.limits.unread_bytes, None, functools.partial(self._host_full, name))
            host = JoinedHost(name, hello, outbox)
            placed = self.keeper is not None and self.keeper.joined(hello.name)
            self._hosts[host.name] = self._joined[host.name] = host
        self.post(lifecycle.HostJoined(time.time(), host.name, host.label, host.num_workers, placed))
        return host

    def joined_hosts(self) -> list[str]:
        """Returns what a person calls the hosts that have joined, and what they offer."""
        with self._lock:
            return [f"{host.label}, {host.num_workers} worker(s)" for host in self._joined.values()]

    def _host_full(self, host: str, bound: str) -> None:
        reason = f"was sent away: it does not take what the pool sends, and no more than {bound} are kept for it"
        self.post(lifecycle.HostGone(time.time(), host, reason))

    def exited_on(self, host: JoinedHost, end: host_pb2.WorkerExit) -> None:
        """Records the end of a process on a host that joined, and keeps its log."""
        if self._host_of.get(end.worker) is host:
            log = self._logs.of(end.worker)
            with _said_only():
                log.write_bytes(end.log)
            over = cut(printable(end.over), self.limits.name_bytes)
            self.post(self._exit(end.worker, end.status, log, out_of_memory=False, over=over))

    def drop(self, refs: Sequence[blobs_pb2.BlobRef]) -> None:
        """Deletes states that have served, on all hosts."""
        if refs:
            for host in list(self._hosts.values()):
                host.drop(refs)

    def keep(self, session: bytes, refs: Sequence[blobs_pb2.BlobRef]) -> None:
        """Keeps the blobs of a snapshot for a session's next job.

        Raises:
            CapacityError: It has too many.
        """
        self.store.use(_user(session), refs, self.limits.session_blobs)
        for ref in refs:
            # What went with its worker's folder is missed when it is looked for.
            if self.store.has(ref):
                self.store.seal(ref)

    def let_go(self, session: bytes, refs: Sequence[blobs_pb2.BlobRef] | None = None) -> None:
        """Deletes snapshots of a session; None for all."""
        self.drop(self.store.release(_user(session), refs))

    def attach(self, worker: str) -> Outbox:
        """Returns what is to be sent to a worker that has just attached.

        Raises:
            ProtocolError: There is no such worker, or it had attached before.
        """
        with self._lock:
            if worker not in self._outboxes or worker in self._vigil.heard_s:
                raise ProtocolError(f"The pool waits for no such worker. Received: worker={worker}")
            self._vigil.heard_s[worker] = time.monotonic()
            return self._outboxes[worker]

    def heard(self, worker: str, heartbeat: worker_pb2.Heartbeat | None = None) -> None:
        """Records that a worker lives, and what it says of itself."""
        with self._lock:
            # One whose process has ended may still be heard of.
            if worker not in self._vigil.heard_s:
                return
            self._vigil.heard_s[worker] = time.monotonic()
            if heartbeat is not None:
                self.seen.sampled(worker, self.host_of(worker), heartbeat.sample)
                self._vigil.idle_s[worker] = heartbeat.idle_s

    def adopt(self, worker: str, refs: Sequence[blobs_pb2.BlobRef]) -> None:
        """Moves blobs that a worker of this machine has written into its own folder into the store.

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

    def snapshot(self) -> snapshot.Snapshot:
        """Returns what the pool knows at this moment."""
        with self._lock:
            known = {name: host for name, host in self._hosts.items() if name in self._state.hosts}
            return snapshot.take(self._state, self._vigil.heard_s, self.seen, known, self.host_of, self._steps)

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

    def cancel(self, job: str) -> str:
        """Cancels a job; returns the state in which it is, or is about to be.

        Raises:
            ProtocolError: No such job.
        """
        with self._lock:
            found = self._known(job)
        self.post(lifecycle.Cancelled(time.time(), job))
        return (found.state if found.state.ended else JobState.CANCELLED).value

    def _known(self, job: str) -> Job:
        if job not in self._state.jobs:
            raise ProtocolError(f"The pool knows no such job; `fdt jobs` lists them. Received: job={cut(job, 40)}")
        return self._state.jobs[job]

    def _steps(self, job: str) -> int:
        relay = self._relays.get(job)
        return relay.steps if relay else self._ended_steps.get(job, 0)

    @property
    def is_leaving(self) -> bool:
        """Whether the pool goes down."""
        return self._state.is_leaving

    def load(self) -> tuple[int, int, int, int]:
        """Returns how many workers there are, how many of them are free for a job that comes now, how many processes are warm,
        and how many workers there may be."""
        with self._lock:
            state = self._state
            num_free = 0 if state.jobs.queued() else state.num_free
            return state.hosts.num_workers, num_free, state.num_warm, state.hosts.capacity

    def logs(self, job: str) -> list[Path]:
        """Returns the log files of a job's workers, by rank.

        Raises:
            ProtocolError: No such job.
        """
        with self._lock:
            return [self._logs.of(worker) for worker in self._known(job).workers]

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
        kept_s = 0.0
        while True:
            try:
                event = self._events.get(timeout=self._pause_s())
            except queue.Empty:
                event = lifecycle.Tick(time.time())
            if event is None:
                self._keep()
                break
            self._apply(event)
            self._vigil.look(self._joined, self._host_of, self._state.jobs.values())
            self._end_the_patient()
            # All jobs are compared with what is written: once for all events that came together, if these are not many.
            if self._events.empty() or time.monotonic() >= kept_s + _LOOK_S:
                self._keep()
                kept_s = time.monotonic()

    def _pause_s(self) -> float:
        deadline_s = self._state.next_deadline_s()
        pause_s = self._config.timing.heartbeat_s
        return pause_s if deadline_s is None else max(0.001, min(pause_s, deadline_s - time.time()))

    def _apply(self, event: lifecycle.Event) -> None:
        records.happened(event, lifecycle.NOTABLE)
        with self._lock:
            for instruction in self._state.handle(event):
                records.happened(instruction, lifecycle.NOTABLE)
                self._do[type(instruction)](instruction)
            if isinstance(event, lifecycle.WorkerExited):
                self._forget_worker(event.worker)
            self._count()

    def _count(self) -> None:
        """Records how far jobs are, if that was not done in the last second."""
        now_s = time.time()
        if abs(now_s - self._looked_s) >= _LOOK_S:
            self._looked_s = now_s
            running = [job.name for job in self._state.jobs.values() if job.state is JobState.RUNNING]
            self.seen.counted([(job, self._steps(job)) for job in running], now_s)
            self.seen.forget(self._state.jobs, {"", *(host.label for host in self._joined.values())})

    def _keep(self) -> None:
        """Writes what has become of jobs into the journal."""
        if self._kept is not None:
            self._kept.keep([Entry.of(job, self._steps(job.name)) for job in self._state.jobs.values()])

    def _end_the_patient(self) -> None:
        """Ends processes that were asked to end and have not."""
        now_s = time.monotonic()
        due = list(itertools.takewhile(lambda item: item[1][0] <= now_s, self._patience.items()))
        for worker, (_, terminated) in due:
            host = self._host_of[worker]
            (host.kill if terminated else host.terminate)(worker)
            del self._patience[worker]
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

    def _exited(self, worker: str, status: int, over: str) -> None:
        before, self._oom_kills = self._oom_kills, oom_kills()
        self.post(self._exit(worker, status, self._logs.of(worker), self._oom_kills > before, over))

    def _exit(self, worker: str, status: int, log: Path, out_of_memory: bool, over: str) -> lifecycle.WorkerExited:
        # Without the lock: whoever tells of an end may hold it.
        known_worker, sample = self._state.workers.get(worker), self.seen.samples.get(worker)
        relay = None if known_worker is None else self._relays.get(known_worker.job or "")
        known = [f" after {relay.steps} steps"] if relay is not None else []
        if sample is not None and not over:
            known.append(f" with {sample.memory_bytes / 1e9:.1f} GB of memory in use")
        words = last_words(log)
        return lifecycle.WorkerExited(time.time(), worker, status, words, ",".join(known), out_of_memory, over)

    def _forget_worker(self, worker: str) -> None:
        self._vigil.forget(worker)
        self.seen.samples.pop(worker, None)
        self._patience.pop(worker, None)
        self._host_of.pop(worker, None)
        outbox = self._outboxes.pop(worker, None)
        if outbox is not None:
            outbox.close()
            with _said_only():
                self._logs.ended(worker)

    # ---- instructions -----------------------------------------------------------------------------------------------

    def _start_worker(self, do: lifecycle.StartWorker) -> None:
        self._outboxes[do.worker] = Outbox(2 * self.limits.untaken_bytes)
        host = self._host_of[do.worker] = self._hosts[do.host]
        try:
            if do.host != OWN_HOST:
                text = f"(on host {self._joined[do.host].label}; its log comes when the worker has ended)\n"
                self._logs.of(do.worker).write_text(text)
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
        joined = self._joined.pop(do.host, None)
        if self.keeper is not None and joined is not None:
            self.keeper.left(joined.called, "" if do.spare else f"host {joined.label} {do.reason}")
        host.dismiss(f"This host {do.reason}; the pool goes on without it.", do.spare)
        for worker in [worker for worker, its_host in self._host_of.items() if its_host is host]:
            self._forget_worker(worker)

    def _host_works(self, do: lifecycle.HostWorks) -> None:
        if self.keeper is not None:
            self.keeper.works(self._joined[do.host].called)

    def _want_hosts(self, do: lifecycle.WantHosts) -> None:
        if self.keeper is not None:
            self.keeper.want(do.number)

    def _end_worker(self, do: lifecycle.EndWorker) -> None:
        self._outboxes[do.worker].close()
        self._patience[do.worker] = time.monotonic() + self._config.timing.stop_s, False

    def _assign(self, do: lifecycle.Assign) -> None:
        opening, relay = self._opened[do.job], self._relays[do.job]
        threads = [self._host_of[worker].num_threads for worker in do.workers]
        try:
            assignments = self._assigner.assignments(self._state.jobs[do.job], opening, self._hosts, threads)
        except Exception as error:  # whatever a launcher meets, it ends the job and not the pool
            name = type(error).__name__ if isinstance(error, FdtError) else "WorkerError"
            message = f"The workers of job {do.job} could not be brought together: {error}"
            self.post(lifecycle.JobRefused(time.time(), do.job, name, message))
            return
        outboxes = [self._outboxes[worker] for worker in do.workers]
        for outbox, assignment in zip(outboxes, assignments, strict=True):
            outbox.put(assignment)
        relay.assign(outboxes)

    def _tell_queued(self, do: lifecycle.TellQueued) -> None:
        queued = job_pb2.Queued(position=do.position, reason=do.reason)
        self._relays[do.job].tell(job_pb2.Event(queued=queued))

    def _tell_started(self, do: lifecycle.TellStarted) -> None:
        started = job_pb2.Started(job=do.job, num_workers=self._opened[do.job].num_workers, versions=versions())
        self._relays[do.job].tell(job_pb2.Event(started=started))

    def _tell_leaving(self, do: lifecycle.TellLeaving) -> None:
        self._relays[do.job].tell(job_pb2.Event(leaving=job_pb2.Leaving(grace_s=do.grace_s)))

    def _tell_wanted(self, do: lifecycle.TellWanted) -> None:
        self._relays[do.job].tell(job_pb2.Event(wanted=job_pb2.Wanted(workers=do.workers)))

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


@contextlib.contextmanager
def _said_only() -> Iterator[None]:
    """Says what the disk or the system refuses, and goes on: a file that stays, or is missing, harms no job."""
    try:
        yield
    except OSError as error:
        records.notice(str(error))


def _user(session: bytes) -> str:
    """Returns the name under which a session uses blobs."""
    return f"session {session.hex()}"
