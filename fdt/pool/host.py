"""Makes this machine a host of a pool on another machine: `fdt serve --join`.

One stream connects the host to the pool. The pool sends requests to start and end workers; the host sends heartbeats and
reports of processes that have ended. Each worker attaches to the pool itself, at the same address and with the same
certificate.
"""

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc

from fdt.base import main_thread
from fdt.base.config import JoinConfig, Timing
from fdt.base.network import holds
from fdt.base.temporary_folders import OwnFolder
from fdt.base.versions import host_versions
from fdt.base.worker_bounds import all_workers_bytes
from fdt.errors import PoolError, PoolUnreachableError, ProtocolError, UsageError
from fdt.transport import rpc, statuses
from fdt.transport.blob_store import BlobStore
from fdt.transport.blobs import STORE
from fdt.v1 import host_pb2
from fdt.worker import network_namespace
from fdt.worker.processes import Processes
from fdt.worker.runtime import Launcher, find_launchers
from fdt.worker.worker_config import WorkerConfig

# How much of the end of a worker's log is sent to the pool.
_LOG_BYTES = 1 << 20


class Membership:
    """A host's membership in a pool.

    All methods must be called from one thread, which must live as long as the workers: when it ends, the kernel ends
    the workers.
    """

    def __init__(self, config: JoinConfig, launchers: Mapping[str, Launcher] | None = None) -> None:
        """
        Args:
            config: The host's configuration.
            launchers: Launchers by mode; if None, the installed ones for the pool's modes.
        """
        self._config = config
        self._launchers = dict(launchers) if launchers is not None else None
        self._welcome = host_pb2.Welcome()
        self._timing = config.timing
        self._unisolated = network_namespace.network_wall()
        self._networks: dict[str, network_namespace.Network] = {}
        self._folder = OwnFolder("fdt-host-")
        self._directory = self._folder.path
        # The certificate of the authority that signed the pool's certificate, for the workers.
        self._tls_ca: Path | None = None
        self._store = BlobStore(self._directory / STORE)
        self._processes = Processes(
            self._exited, self._directory, config.timing, walls=config.walls, bounds=config.bounds
        )
        self._outgoing: queue.SimpleQueue[host_pb2.HostEvent | None] = queue.SimpleQueue()
        self._incoming: queue.SimpleQueue[host_pb2.HostInstruction | None] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._ended = threading.Event()
        self._error: Exception | None = None
        # Why the pool dismissed this host as spare; "" if it did not.
        self._spare = ""
        self._channel: grpc.Channel | None = None
        self._call: Any = None
        self._threads = [
            threading.Thread(target=self._receive, name="fdt-host-receive", daemon=True),
            threading.Thread(target=self._beat, name="fdt-host-heartbeat", daemon=True),
        ]
        self._do: dict[str, Callable[[host_pb2.HostInstruction], None]] = {
            "start": lambda instruction: self._start(instruction.start),
            "signal": lambda instruction: self._signal(instruction.signal),
            "drop": lambda instruction: self._drop(instruction.drop),
            "dismissal": lambda instruction: self._dismissed(instruction.dismissal),
        }

    def join(self) -> None:
        """Joins the pool.

        Raises:
            PoolUnreachableError: No pool answers at the address.
            AccessError: The pool does not accept the token, or the certificate does not fit.
            VersionError: The pool has other versions.
            UsageError: The pool takes no hosts, or not this one.
        """
        config = self._config
        self._channel = rpc.connect(config.pool, config.credentials, config.timing)
        if config.credentials.tls_ca is not None:
            # A copy, since the configured file may be readable by this process only.
            self._tls_ca = self._directory / "ca.pem"
            self._tls_ca.write_bytes(config.credentials.tls_ca.read_bytes())
        attach = self._channel.stream_stream(
            "/fdt.v1.Hosts/Attach",
            request_serializer=host_pb2.HostEvent.SerializeToString,
            response_deserializer=host_pb2.HostInstruction.FromString,
        )
        self._send(hello=self._hello())
        # No deadline: the heartbeats take its place, and the channel's keepalive notices that the pool has died.
        self._call = attach(self._events())
        self._threads[0].start()
        self._welcome = self._first().welcome
        if not holds(config.network, self._welcome.address):
            raise UsageError(
                f"The pool's address is not on this host's trusted network. Expected one of {config.network.cidr}: name "
                f"the interface that leads to the pool with --trusted-network. Received: pool={self._welcome.address}"
            )
        if self._launchers is None:
            self._launchers = find_launchers(tuple(self._welcome.modes))
        self._networks = {
            mode: network_namespace.network_for(launcher.tunnels, True, config.open_servers, self._unisolated)
            for mode, launcher in self._launchers.items()
        }
        self._timing = Timing(**self._welcome.timing)
        self._threads[1].start()

    @property
    def network(self) -> str:
        """The network that worker processes of this host see, in one line; valid after `join`."""
        return network_namespace.describe(self._networks, self._unisolated)

    def serve(self) -> str:
        """Executes the pool's instructions until the pool ends or no longer needs this host; returns the reason, in words.

        Raises:
            PoolError: The pool has dismissed this host for a fault, or was lost.
        """
        while (instruction := main_thread.take(self._incoming)) is not None:
            kind = instruction.WhichOneof("kind")
            if kind not in self._do:
                raise ProtocolError(f"The pool sent an instruction that this host does not know. Received: kind={kind}")
            self._do[kind](instruction)
        if self._error is not None:
            raise self._error
        return self._spare or f"the pool at {self._config.pool} has ended"

    def leave(self) -> None:
        """Tells the pool that this host leaves, and waits for its acknowledgement.

        After that the pool does not count the end of this host's workers as a failure.
        """
        if self._call is not None:
            self._send(goodbye=host_pb2.Goodbye())
            self._ended.wait(self._timing.stop_s)

    def close(self) -> None:
        """Ends all workers and threads, and deletes the host's files."""
        self._stop.set()
        self._outgoing.put(None)
        if self._call is not None:
            self._call.cancel()
        self._processes.close()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(self._timing.stop_s)
        if self._channel is not None:
            self._channel.close()
        self._folder.remove()

    # ---- the stream -------------------------------------------------------------------------------------------------

    def _hello(self) -> host_pb2.Hello:
        network = self._config.network
        return host_pb2.Hello(
            name=self._config.name,
            num_workers=self._config.num_workers,
            num_cores=len(os.sched_getaffinity(0)),
            address=network.address,
            interface=network.interface,
            versions=host_versions(),
            unisolated=self._unisolated,
            open_servers=self._config.open_servers,
            time_s=time.time(),
            worker_memory_bytes=self._config.bounds.here().memory_bytes,
            all_memory_bytes=all_workers_bytes(),
        )

    def _first(self) -> host_pb2.HostInstruction:
        try:
            first = self._incoming.get(timeout=self._timing.call_s)
        except queue.Empty:
            raise PoolUnreachableError(f"The pool at {self._config.pool} did not answer in time.") from None
        if self._error is not None:
            raise self._error
        if first is None or not first.HasField("welcome"):
            raise ProtocolError(f"The pool at {self._config.pool} did not begin with `welcome`.")
        return first

    def _send(self, **kind: Any) -> None:
        self._outgoing.put(host_pb2.HostEvent(**kind))

    def _events(self) -> Iterator[host_pb2.HostEvent]:
        while (event := self._outgoing.get()) is not None:
            yield event

    def _receive(self) -> None:
        try:
            for instruction in self._call:
                self._incoming.put(instruction)
        except grpc.RpcError as error:
            self._error = statuses.from_rpc_error(error, self._config.pool)
        self._ended.set()
        self._incoming.put(None)

    def _beat(self) -> None:
        while not self._stop.wait(self._timing.heartbeat_s):
            self._send(heartbeat={})

    # ---- the pool's instructions ------------------------------------------------------------------------------------

    def _start(self, start: host_pb2.StartWorker) -> None:
        assert self._launchers is not None
        config = WorkerConfig(
            pool=self._config.pool,
            name=start.worker,
            store=str(self._store.directory),
            folder=str(self._processes.folder(start.worker)),
            timing=self._timing,
            tls_ca=None if self._tls_ca is None else str(self._tls_ca),
            joined=True,
            data=tuple(map(str, self._config.data)),
        )
        log = self._log(start.worker)
        try:
            engine = self._launchers[start.mode].engine
            network = self._networks[start.mode]
            # Workers may write into the store, since they themselves fetch the blobs that it lacks (docs/decisions/0037).
            store = (self._store.directory,)
            reads = (*self._config.data, *([] if config.tls_ca is None else [Path(config.tls_ca)]))
            environment = config.environment()
            self._processes.start(
                start.worker, engine, network, environment, start.secret, log, reads=reads, writes=store
            )
        except OSError as error:
            log.write_text(f"{error}\n")
            self._exited(start.worker, 127)

    def _signal(self, request: host_pb2.SignalWorker) -> None:
        self._processes.signal(request.worker, request.signal)

    def _drop(self, drop: host_pb2.DropBlobs) -> None:
        for ref in drop.blobs:
            self._store.drop(ref)

    def _dismissed(self, dismissal: host_pb2.Dismissal) -> None:
        if not dismissal.spare:
            raise PoolError(dismissal.reason)
        self._spare = dismissal.reason

    # ---- workers ----------------------------------------------------------------------------------------------------

    def _log(self, worker: str) -> Path:
        return self._directory / f"{Path(worker).name}.worker.log"

    def _exited(self, worker: str, status: int, over: str = "") -> None:
        """Reports a worker's end to the pool; called by the thread that notices it."""
        log, content = self._log(worker), b""
        with contextlib.suppress(OSError), open(log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_BYTES))
            content = file.read()
        log.unlink(missing_ok=True)
        self._send(exit=host_pb2.WorkerExit(worker=worker, status=status, log=content, over=over))
