"""Executes the decisions of `fdt.pool.state.pool_state`: one thread passes events to it and executes its instructions."""

import queue
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from fdt.base import log, main_thread
from fdt.base.config import ServeConfig
from fdt.base.limits import cut
from fdt.base.printable import printable
from fdt.errors import AccessError, CapacityError, FdtError, ProtocolError
from fdt.pool import snapshot
from fdt.pool.access import Access, Caller
from fdt.pool.assigner import Assigner
from fdt.pool.event_log import EventLog
from fdt.pool.failure_detector import FailureDetector
from fdt.pool.host_links import HostLinks
from fdt.pool.hosts import JoinedHost, OwnHost
from fdt.pool.job_streams import JobStreams
from fdt.pool.journal import Entry
from fdt.pool.observations import Observations
from fdt.pool.relay import JobRelay, Outbox
from fdt.pool.session_blobs import SessionBlobs
from fdt.pool.state import events
from fdt.pool.state.entities import Job, JobState
from fdt.pool.state.pool_state import PoolState
from fdt.pool.state_folder import StateFolder
from fdt.pool.worker_links import WorkerLinks, said_only
from fdt.transport.blob_store import BlobStore
from fdt.transport.blobs import STORE
from fdt.v1 import blobs_pb2, host_pb2, job_pb2, worker_pb2
from fdt.worker import network_namespace
from fdt.worker.log_file import LogFolder
from fdt.worker.processes import Processes, last_words, oom_kills
from fdt.worker.rendezvous import RendezvousTable
from fdt.worker.runtime import Launcher

# Seconds between two readings of the jobs' numbers of steps, for their curves, and between two checks of the owners' tokens.
_LOOK_S = 1.0


class Supervisor:
    """Runs the pool's workers and jobs."""

    def __init__(
        self,
        config: ServeConfig,
        launchers: Mapping[str, Launcher],
        directory: Path,
        socket: str,
        access: Access,
        kept: StateFolder | None = None,
    ) -> None:
        """
        Args:
            config: The pool's configuration.
            launchers: A launcher for each mode that the pool serves.
            directory: The pool's own directory, for blobs and logs.
            socket: The address at which workers attach.
            access: Tells which persons' tokens are valid.
            kept: Keeps the list of jobs; None to keep nothing.
        """
        self._kept, entries = kept, kept.entries if kept is not None else ()
        self._config, self._launchers, self._access = config, launchers, access
        self.limits, timing = config.limits, config.timing
        self._logs = LogFolder(directory / "logs")
        self.store = BlobStore(directory / STORE, config.store_limit_bytes, timing.chunk_s, self.limits)
        self.rendezvous_table = RendezvousTable()
        self._assigner = Assigner(config, launchers, self.rendezvous_table)
        self._processes = Processes(self._exited, directory, timing, walls=config.walls, bounds=config.bounds)
        own = OwnHost(config, launchers, self._processes, self.store, self._logs.path, socket)
        self.own_keys = own.worker_keys
        # The network that worker processes on this machine see, in one line.
        self.network = network_namespace.describe(own.networks, own.unisolated)
        # Guards the fields below; held while instructions are executed, so that other threads see all of their effects or none.
        self._lock = threading.Lock()
        modes: dict[str, Callable[[int], int]]
        modes, before = {mode: each.num_processes for mode, each in launchers.items()}, [each.job() for each in entries]
        self._event_log = EventLog(config.record_events) if config.record_events is not None else None
        if self._event_log is not None:
            modes = self._event_log.began(
                config.num_workers, modes, timing, config.max_jobs, self.limits, before, config.placing
            )
        self._state = PoolState(config.num_workers, modes, timing, config.max_jobs, self.limits, before, config.placing)
        self._streams = JobStreams(self.limits, entries)
        self._workers = WorkerLinks(self._logs, 2 * self.limits.untaken_bytes, timing.stop_s)
        self.hosts = HostLinks(config, own, launchers, self._host_full)
        self.blobs = SessionBlobs(self.store, self._processes, self.hosts, self._workers, self.limits.session_blobs)
        self.seen, self._looked_s = Observations(self.limits.account_bytes), 0.0
        # How many processes the system had killed for want of memory before the first worker started.
        self._oom_kills = oom_kills()
        self._events: queue.SimpleQueue[events.Event | None] = queue.SimpleQueue()
        self._failure_detector = FailureDetector(timing, self.post)
        self._do = self._instructions()
        self._thread = threading.Thread(target=self._run, name="fdt-pool", daemon=True)
        self._ended = threading.Event()
        self.error: BaseException | None = None

    def _instructions(self) -> dict[type[events.Instruction], Callable[..., None]]:
        """Returns the function that executes each instruction."""
        return {
            events.StartWorker: self._start_worker,
            events.EndWorker: lambda do: self._workers.end(do.worker),
            events.KillWorker: lambda do: self._workers[do.worker].host.kill(do.worker),
            events.WelcomeHost: self.hosts.welcome,
            events.DropHost: self._drop_host,
            events.HostWorks: self.hosts.works,
            events.WantHosts: self.hosts.want,
            events.Say: lambda do: log.notice(do.line),
            events.Assign: self._assign,
            events.TellQueued: self._streams.tell_queued,
            events.TellStarted: self._streams.tell_started,
            events.TellFailed: self._streams.tell_failed,
            events.TellLeaving: self._streams.tell_leaving,
            events.TellWanted: self._streams.tell_wanted,
            events.Stop: lambda _: self._events.put(None),
            events.EndJob: self._end_job,
            events.LetGo: lambda do: self.blobs.let_go(do.session),
        }

    def start(self) -> None:
        """Starts the thread, which starts workers."""
        self._thread.start()

    def wait(self) -> None:
        """Waits until the pool has ended.

        Raises:
            Exception: The error that ended the pool.
        """
        main_thread.wait(self._ended)
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        """Ends all jobs and processes."""
        self._events.put(None)
        if self._thread.ident is None:
            return
        self._thread.join(3 * self._config.timing.stop_s)

    # ---- for the servicers ------------------------------------------------------------------------------------------

    def post(self, event: events.Event) -> None:
        """Queues an event; any thread may call."""
        self._events.put(event)

    def submit(self, opening: job_pb2.OpenJob, caller: Caller) -> JobRelay:
        """Adds a caller's job; returns its relay.

        Raises:
            CapacityError: Its names are too long, or the pool is stopping.
        """
        self._streams.check(opening)
        with self._lock:
            self._check_alive()
            launcher = self._launchers.get(opening.mode)
            needs_pool = launcher is not None and launcher.needs_pool(opening.options)
            relay = self._streams.open(opening, caller)
        self.post(
            events.Submitted(
                time.time(),
                relay.job,
                opening.mode,
                opening.num_workers,
                opening.script,
                needs_pool,
                relay.session,
                opening.least_workers,
                caller.name,
            )
        )
        return relay

    def join(self, hello: host_pb2.Hello) -> JoinedHost:
        """Adds a host.

        Raises:
            UsageError: `fdt.pool.hosts.admit` refuses the host.
            VersionError: The host has other versions.
            CapacityError: The pool is stopping.
        """
        with self._lock:
            self._check_alive()
            host, placed = self.hosts.join(hello)
        self.post(events.HostJoined(time.time(), host.name, host.label, host.num_workers, placed))
        return host

    def _check_alive(self) -> None:
        if not self._thread.is_alive():
            raise CapacityError("The pool is stopping.")

    def worker_memory_bytes(self, num_workers: int) -> int:
        """Returns what each worker of a job may use of memory, on the host where that is least; 0 if it is not known.

        Args:
            num_workers: The job's.
        """
        with self._lock:
            known = [host.memory_of_each(num_workers) for host in self.hosts.values()]
        return min((each for each in known if each is not None), default=0)

    def joined_hosts(self) -> list[str]:
        """Returns the labels of the joined hosts, each with the number of workers that it offers."""
        with self._lock:
            return [f"{host.label}, {host.num_workers} worker(s)" for host in self.hosts.joined.values()]

    def _host_full(self, host: str, bound: str) -> None:
        reason = f"was dismissed: it does not read the pool's messages, and more than {bound} of them waited"
        self.post(events.HostGone(time.time(), host, reason))

    def exited_on(self, host: JoinedHost, end: host_pb2.WorkerExit) -> None:
        """Records the end of a process on a host that joined, and keeps its log."""
        if self._workers.host_of(end.worker) is host:
            written = self._logs.of(end.worker)
            with said_only():
                written.write_bytes(end.log)
            over = cut(printable(end.over), self.limits.name_bytes)
            self.post(self._exit(end.worker, end.status, written, out_of_memory=False, over=over))

    def attach(self, worker: str) -> Outbox:
        """Returns the outbox of a worker that has just attached.

        Raises:
            ProtocolError: There is no such worker, or it has attached before.
        """
        with self._lock:
            if worker not in self._workers or worker in self._failure_detector.heard_s:
                raise ProtocolError(f"The pool expects no such worker to attach. Received: worker={worker}")
            self._failure_detector.heard_s[worker] = time.monotonic()
            return self._workers[worker].outbox

    def heard(self, worker: str, heartbeat: worker_pb2.Heartbeat | None = None) -> None:
        """Records that a worker has sent a message, and its heartbeat's sample."""
        with self._lock:
            # Messages of a worker may arrive after its process has ended.
            if worker not in self._failure_detector.heard_s:
                return
            self._failure_detector.heard_s[worker] = time.monotonic()
            if heartbeat is not None:
                self.seen.sampled(worker, self._workers.label_of(worker), heartbeat.sample)
                self._failure_detector.idle_s[worker] = heartbeat.idle_s

    def host_of(self, worker: str) -> str:
        """Returns the label of a worker's host; "" for the pool's own machine."""
        return self._workers.label_of(worker)

    def snapshot(self) -> snapshot.Snapshot:
        """Returns a snapshot of the pool."""
        with self._lock:
            known, heard_s, steps = (
                self.hosts.known_to(self._state.hosts),
                self._failure_detector.heard_s,
                self._streams.steps,
            )
            return snapshot.take(self._state, heard_s, self.seen, known, self._workers.label_of, steps)

    def serving(self, worker: str) -> tuple[JobRelay, int] | None:
        """Returns the relay of the job that a worker serves, and its rank; None if it serves none."""
        with self._lock:
            found = self._state.workers.get(worker)
            relay = self._streams.relay(found.job) if found is not None else None
            return (relay, found.rank) if found is not None and relay is not None else None

    def job_needs(self, job: str, ref: blobs_pb2.BlobRef) -> bool:
        """Returns whether a job's workers were told the name of a blob and may still need the blob."""
        with self._lock:
            relay = self._streams.relay(job)
        return relay is not None and (self.store.uses(job, ref) or ref in relay.passing_blobs())

    def list_jobs(self) -> list[tuple[Job, int]]:
        """Returns jobs and the steps they have done, oldest first."""
        with self._lock:
            return [(job, self._streams.steps(job.name)) for job in self._state.jobs.values()]

    def cancel(self, job: str) -> str:
        """Cancels a job; returns the state that it has or is about to get.

        Raises:
            ProtocolError: No such job.
        """
        with self._lock:
            found = self._known(job)
        self.post(events.Cancelled(time.time(), job))
        return (found.state if found.state.ended else JobState.CANCELLED).value

    def owner(self, job: str) -> str:
        """Returns the person who submitted a job; "" for the operator.

        Raises:
            ProtocolError: No such job.
        """
        with self._lock:
            return self._known(job).owner

    def _known(self, job: str) -> Job:
        if job not in self._state.jobs:
            raise ProtocolError(f"The pool knows no such job; `fdt jobs` lists them. Received: job={cut(job, 40)}")
        return self._state.jobs[job]

    @property
    def reads_files(self) -> bool:
        """Whether workers may read files that a client names: those of a host that joined know which folders it lists."""
        return self._config.of_one_run or bool(self._config.data) or self._config.network is not None

    @property
    def is_leaving(self) -> bool:
        """Whether the pool goes down."""
        return self._state.is_leaving

    def load(self) -> tuple[int, int, int, int]:
        """Returns the number of workers, how many of them are free for a new job, how many processes are warm, and the most
        workers that the pool can have."""
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
        """Takes events until the pool is stopped. An unexpected error ends the pool, and is raised by `wait`."""
        try:
            self._take_events()
        except BaseException as error:
            self.error = error
            log.crashed()
        finally:
            try:
                # In this thread: the kernel kills workers when the thread that started them ends.
                self._shut_down()
            finally:
                self._ended.set()

    def _take_events(self) -> None:
        self._apply(events.Tick(time.time()))
        kept_s = 0.0
        while True:
            try:
                event = self._events.get(timeout=self._pause_s())
            except queue.Empty:
                event = events.Tick(time.time())
            if event is None:
                self._keep()
                break
            self._apply(event)
            # Locked: even copying a table to a list is not atomic, since the garbage collector may let other threads run.
            with self._lock:
                self._failure_detector.look(self.hosts.joined, self._workers, self._state.jobs.values())
            self._workers.end_overdue()
            # This compares all jobs with the journal: done once for events that come together, but at least once a second.
            if self._events.empty() or time.monotonic() >= kept_s + _LOOK_S:
                self._keep()
                kept_s = time.monotonic()

    def _pause_s(self) -> float:
        deadline_s = self._state.next_deadline_s()
        pause_s = self._config.timing.heartbeat_s
        return pause_s if deadline_s is None else max(0.001, min(pause_s, deadline_s - time.time()))

    def _apply(self, event: events.Event) -> None:
        log.happened(event, events.NOTABLE)
        with self._lock:
            instructions = self._state.handle(event)
            if self._event_log is not None:
                self._event_log.add(event, instructions)
            for instruction in instructions:
                log.happened(instruction, events.NOTABLE)
                self._do[type(instruction)](instruction)
            if isinstance(event, events.WorkerExited):
                self._forget_worker(event.worker)
            self._look()

    def _look(self) -> None:
        """Records the running jobs' numbers of steps and checks their owners' tokens, at most once in `_LOOK_S`."""
        now_s = time.time()
        if abs(now_s - self._looked_s) >= _LOOK_S:
            self._looked_s = now_s
            running = [job.name for job in self._state.jobs.values() if job.state is JobState.RUNNING]
            self.seen.counted([(job, self._streams.steps(job)) for job in running], now_s)
            self.seen.forget(self._state.jobs, {"", *(host.label for host in self.hosts.joined.values())})
            self._end_strangers(now_s)

    def _end_strangers(self, now_s: float) -> None:
        """Ends the jobs of persons whose tokens are no longer valid."""
        for job in self._streams:
            caller = self._streams[job].relay.caller
            lost = self._access.lost(caller)
            if lost is not None:
                self.post(events.JobRefused(now_s, job, AccessError.__name__, lost))
                self._access.audit.write("job ended", caller.label, job=job, reason=lost)

    def _keep(self) -> None:
        """Writes the jobs into the journal."""
        if self._kept is not None:
            self._kept.keep([Entry.of(job, self._streams.steps(job.name)) for job in self._state.jobs.values()])

    def _shut_down(self) -> None:
        with self._lock:
            failed = job_pb2.Failed(error="JobCancelledError", message="The pool was stopped.", rank=-1)
            for job in self._streams:
                self._streams.tell(job, failed=failed)
                self._end_job(events.EndJob(job))
            self._workers.close()
            for host in self.hosts.joined.values():
                host.outbox.close()
        self._processes.close()
        if self._event_log is not None:
            self._event_log.close()

    def _exited(self, worker: str, status: int, over: str) -> None:
        before, self._oom_kills = self._oom_kills, oom_kills()
        self.post(self._exit(worker, status, self._logs.of(worker), self._oom_kills > before, over))

    def _exit(self, worker: str, status: int, written: Path, out_of_memory: bool, over: str) -> events.WorkerExited:
        # Without the lock: the caller may hold it.
        known_worker, sample = self._state.workers.get(worker), self.seen.samples.get(worker)
        relay = None if known_worker is None else self._streams.relay(known_worker.job)
        known = [f" after {relay.steps} steps"] if relay is not None else []
        if sample is not None and not over:
            known.append(f" with {sample.memory_bytes / 1e9:.1f} GB of memory in use")
        words = last_words(written)
        return events.WorkerExited(time.time(), worker, status, words, ",".join(known), out_of_memory, over)

    def _forget_worker(self, worker: str) -> None:
        host = self._workers.host_of(worker)
        if host is not None:
            host.worker_keys.forget(worker)
        self._failure_detector.forget(worker)
        self.seen.samples.pop(worker, None)
        self._workers.forget(worker)

    # ---- instructions -----------------------------------------------------------------------------------------------

    def _start_worker(self, do: events.StartWorker) -> None:
        try:
            self._workers.start(do.worker, do.mode, self.hosts[do.host])
        except OSError as error:
            self.post(events.WorkerExited(time.time(), do.worker, 127, str(error)))

    def _drop_host(self, do: events.DropHost) -> None:
        for worker in self._workers.on(self.hosts.dismiss(do)):
            self._forget_worker(worker)

    def _assign(self, do: events.Assign) -> None:
        stream, links = self._streams[do.job], [self._workers[worker] for worker in do.workers]
        threads = [link.host.num_threads for link in links]
        keys = [link.host.worker_keys.assign(worker, do.job) for worker, link in zip(do.workers, links, strict=True)]
        try:
            assignments = self._assigner.assignments(
                self._state.jobs[do.job], stream.opening, self.hosts, threads, keys
            )
        except Exception as error:  # a launcher's error ends the job, not the pool
            name = type(error).__name__ if isinstance(error, FdtError) else "WorkerError"
            message = f"The workers of job {do.job} could not be brought together: {error}"
            self.post(events.JobRefused(time.time(), do.job, name, message))
            return
        for link, assignment in zip(links, assignments, strict=True):
            link.outbox.put(assignment)
        stream.relay.processes = tuple(do.workers) if self._config.of_one_run else ()
        stream.relay.assign([link.outbox for link in links])

    def _end_job(self, do: events.EndJob) -> None:
        for keys in (self.own_keys, self.hosts.worker_keys):
            keys.end(do.job)
        self.store.release(do.job)
        with said_only():
            self.hosts.drop(self._streams[do.job].relay.passing_blobs())
        self._streams.end(do.job, self._state.jobs)
        self.rendezvous_table.close(do.job)
