"""Runs a pool: opens its ports with their rate limiters, and starts the supervisor and the services behind them."""

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2

from fdt.base.config import ADDRESS, ServeConfig, serve_config_of
from fdt.base.limits import Limits, open_descriptors
from fdt.base.temporary_folders import OwnFolder
from fdt.errors import UsageError
from fdt.pool import hosts
from fdt.pool.access import WRONG_TOKEN, Access
from fdt.pool.audit import AuditLog
from fdt.pool.examiner import Examiner
from fdt.pool.reconciler import Reconciler
from fdt.pool.scheduling.request import HostRequest, find_scheduler
from fdt.pool.services.blobs import Blobs
from fdt.pool.services.hosts import Hosts
from fdt.pool.services.jobs import Jobs
from fdt.pool.services.pool import Health, Pool
from fdt.pool.services.workers import Workers
from fdt.pool.state import events
from fdt.pool.state_folder import StateFolder
from fdt.pool.supervisor import Supervisor
from fdt.pool.token_file import OPERATOR, TokenFile
from fdt.pool.worker_keys import WorkerKeys
from fdt.transport import rpc
from fdt.transport.rate_limits import RateLimiter
from fdt.v1 import blobs_pb2, host_pb2, job_pb2, pool_pb2, worker_pb2
from fdt.worker import futexes
from fdt.worker.runtime import Launcher, find_launchers

if TYPE_CHECKING:
    from fdt.pool.metrics import MetricsServer
    from fdt.pool.page.server import PageServer


_WORKERS = worker_pb2.DESCRIPTOR.services_by_name["Workers"]
# The number of threads that a call takes if it streams both ways.
_THREADS_EACH = 2
# A service, its servicer, and the names of its methods that take and return raw bytes.
_Service = tuple[ServiceDescriptor, object, Iterable[str]]


class Server:
    """A pool: its ports, and the supervisor and services behind them."""

    def __init__(
        self,
        config: ServeConfig,
        launchers: Mapping[str, Launcher] | None = None,
        directory: Path | None = None,
        kept: StateFolder | None = None,
    ) -> None:
        """
        Args:
            config: The pool's configuration.
            launchers: Launchers by mode; the installed ones if None.
            directory: For blobs, logs and the workers' socket, removed at the end; a new temporary one if None.
            kept: Keeps the list of jobs for the next pool; None to keep nothing. The caller closes it.

        Raises:
            UsageError: The configuration is invalid, or would give strangers access.
        """
        tls = config.tls_cert is not None and config.tls_key is not None
        rpc.check_listen(config.listen, config.token, tls)
        hosts.check(config)
        self._config = config
        self._launchers = dict(launchers) if launchers is not None else find_launchers(config.modes)
        self._directory, self._kept = directory, kept
        self._folder: OwnFolder | None = None
        self._audit = AuditLog(config.audit_log)
        self._persons = TokenFile(config.tokens, on_change=self._tokens_changed) if config.tokens is not None else None
        self._access = Access(config.token, config.join_token, self._persons, config.share, self._audit)
        self._servers: list[grpc.Server] = []
        self._limiters: list[RateLimiter] = []
        self._metrics: MetricsServer | None = None
        self._page: PageServer | None = None
        self._supervisor: Supervisor | None = None
        self._reconciler: Reconciler | None = None
        self._examiner: Examiner | None = None

    def start(self) -> str:
        """Opens the ports, and begins to start workers.

        Returns:
            The address, with the port that the system chose if 0 was asked for.
        """
        config = self._config
        if self._directory is None:
            self._folder = OwnFolder("fdt-pool-")
            self._directory = self._folder.path
        directory = self._directory
        socket = f"unix:{directory}/workers.sock"
        access = self._access
        supervisor = self._supervisor = Supervisor(config, self._launchers, directory, socket, access, self._kept)
        examiner = self._examiner = Examiner(admitted=config.admitted)
        pool = Pool(supervisor, config, access)
        timing, limits = config.timing, config.limits
        blobs = Blobs(supervisor.store, limits, timing, access)
        # For each mode: warm and ending processes, and those on this machine of jobs whose workers are on other hosts.
        num_processes = 4 * (config.num_workers + limits.jobs) * len(self._launchers)
        own_keys, keys = supervisor.own_keys, supervisor.hosts.worker_keys
        limiter = RateLimiter(limits, timing, num_processes)
        own = self._open([_workers(Workers(supervisor, own_keys, blobs))], limiter, own_keys)
        # A pool that takes no hosts still admits one host at a time, to send it the reason.
        joined = (limits.joined_workers, limits.hosts) if config.network is not None else (1, 1)
        services: list[_Service] = [
            (blobs_pb2.DESCRIPTOR.services_by_name["Blobs"], blobs, {"Put", "Get"}),
            (job_pb2.DESCRIPTOR.services_by_name["Jobs"], Jobs(supervisor, examiner, access), {"Train"}),
            (host_pb2.DESCRIPTOR.services_by_name["Hosts"], Hosts(supervisor, access), {"Attach"}),
            (pool_pb2.DESCRIPTOR.services_by_name["Pool"], pool, ()),
            (health_pb2.DESCRIPTOR.services_by_name["Health"], Health(), ()),
        ]
        if config.network is not None:
            services.append(_workers(Workers(supervisor, keys, blobs)))
        public_limiter = RateLimiter(limits, timing, *joined, access.counted_as)
        public = self._open(services, public_limiter, keys, open_descriptors(limits))
        futexes.make_room(_THREADS_EACH * sum(limiter.max_calls for limiter in self._limiters))
        if config.metrics is not None:
            # Imported late: Prometheus's library is optional.
            from fdt.pool.metrics import serve

            self._metrics = serve(config.metrics, supervisor.snapshot, limits)
        if config.page is not None:
            self._page = _page(config.page, supervisor, limits, access.audit)
            pool.link = self._page.link
        # This machine's workers have a server of their own, so that they can attach while the public port is overloaded.
        rpc.listen(own, socket)
        address = rpc.listen(public, config.listen, config.tls_cert, config.tls_key)
        others = config.metrics, self._page.address if self._page else None
        pool.listens = [address, *(each for each in others if each)]
        if config.placing is not None and config.network is not None and config.join_token is not None:
            request = HostRequest.of(config.placing, config.network, address, config.join_token)
            scheduler = find_scheduler(config.placing.scheduler)
            self._reconciler = supervisor.hosts.reconciler = Reconciler(scheduler, request, timing, supervisor.post)
            self._reconciler.start()
        for server in self._servers:
            server.start()
        supervisor.start()
        return address

    @property
    def network(self) -> str:
        """The network that worker processes see, in one line; valid after `start`."""
        assert self._supervisor is not None
        return self._supervisor.network

    @property
    def link(self) -> str:
        """A URL that authorises one browser, once, to see the pool's page; "" if the pool has no page."""
        return self._page.link() if self._page is not None else ""

    def _open(
        self, services: Iterable[_Service], limiter: RateLimiter, keys: WorkerKeys, connections: int | None = None
    ) -> grpc.Server:
        config, access = self._config, self._access

        def complaint(method: str, given: bytes) -> str | None:
            service, _, name = method.rpartition("/")
            if service == _WORKERS.full_name:
                return None if keys.opens(name, given) else WRONG_TOKEN
            return access.complaint(method, given)

        interceptor = rpc.RequireToken(complaint, access.refused)
        server = rpc.create_server(interceptor, limiter, config.limits, config.timing, connections)
        server.add_generic_rpc_handlers(
            tuple(rpc.service(service, servicer, limiter, raw) for service, servicer, raw in services)
        )
        self._servers.append(server)
        self._limiters.append(limiter)
        limiter.start()
        return server

    @property
    def persons(self) -> list[str]:
        """The names of persons who have tokens."""
        return self._persons.names() if self._persons is not None else []

    def _tokens_changed(self, added: list[str], gone: list[str]) -> None:
        self._audit.write("tokens changed", OPERATOR, added=", ".join(added), revoked=", ".join(gone))

    def leave(self, grace_s: float) -> None:
        """Accepts no more jobs, and ends when running jobs have taken a snapshot, or after `grace_s`."""
        if self._supervisor is not None:
            self._supervisor.post(events.Leaving(time.time(), grace_s))

    def wait(self) -> None:
        """Waits until the pool has ended.

        Raises:
            Exception: The error that ended the pool, if neither `stop` nor `leave` did.
        """
        assert self._supervisor is not None
        self._supervisor.wait()

    def stop(self) -> None:
        """Ends all jobs and processes, closes all ports, removes the pool's files."""
        if self._supervisor is not None:
            self._supervisor.stop()
        if self._reconciler is not None:
            self._reconciler.close()
        if self._examiner is not None:
            self._examiner.close()
        if self._metrics is not None:
            self._metrics.close()
        if self._page is not None:
            self._page.close()
        for stopped in [server.stop(0) for server in self._servers]:
            stopped.wait(self._config.timing.stop_s)
        for limiter in self._limiters:
            limiter.close()
        self._audit.close()
        if self._folder is not None:
            self._folder.remove()
        elif self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)


def _workers(servicer: Workers) -> _Service:
    return _WORKERS, servicer, {"Attach", "PutBlob", "GetBlob"}


def _page(address: str, supervisor: Supervisor, limits: Limits, audit: AuditLog) -> "PageServer":
    # Imported late: the web framework is optional.
    try:
        from fdt.pool.page.app import PoolActions
        from fdt.pool.page.feed import Feed
        from fdt.pool.page.server import PageServer
    except ImportError as error:
        remedy = "pip install 'fdt[page]' (starlette and uvicorn)"
        raise UsageError(
            f"--page needs a web framework, which is not installed: {remedy}. Received: {error}"
        ) from error

    def cancel(job: str) -> str:
        state = supervisor.cancel(job)
        audit.write("job cancelled", OPERATOR, job=job, peer="page")
        return state

    feed = Feed(supervisor.snapshot, supervisor.seen.curves)
    return PageServer(address, feed, PoolActions(cancel, supervisor.logs), limits)


def main() -> None:
    """Runs a pool for the parent process: reads its configuration from the first line of standard input, and serves until
    standard input is closed."""
    fields = json.loads(sys.stdin.buffer.readline())
    directory = Path(fields.pop("directory"))
    server = Server(serve_config_of(fields), directory=directory)
    address = server.start()
    # The parent process waits for this file.
    (directory / f".{ADDRESS}").write_text(address)
    (directory / f".{ADDRESS}").rename(directory / ADDRESS)
    threading.Thread(target=_stop_with_parent, args=(server,), name="fdt-parent", daemon=True).start()
    try:
        server.wait()
    finally:
        server.stop()


def _stop_with_parent(server: Server) -> None:
    # Not through `sys.stdin`: its lock would be held when the interpreter ends for another reason.
    while os.read(0, 1 << 10):
        pass
    server.stop()


if __name__ == "__main__":
    main()
