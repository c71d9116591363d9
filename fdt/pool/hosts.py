"""Represents the machines on which a pool starts workers (its own, and hosts that joined), and decides which may join."""

import ipaddress
import os
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from fdt.base.config import ServeConfig
from fdt.base.network import holds
from fdt.errors import UsageError, VersionError
from fdt.pool.relay import Outbox
from fdt.pool.worker_keys import WorkerKeys
from fdt.transport import tokens
from fdt.transport.blob_store import BlobStore
from fdt.v1 import blobs_pb2, host_pb2
from fdt.worker.network_namespace import REMEDY, network_for, network_wall
from fdt.worker.processes import Processes
from fdt.worker.runtime import Launcher, Place
from fdt.worker.worker_config import WorkerConfig

# The longest host name in messages.
_MAX_NAME = 64
# The largest difference between a host's clock and the pool's; the transfer time of the host's first message adds to it.
_CLOCKS_APART_S = 120.0


class Host(Protocol):
    """A machine on which worker processes are started and ended.

    Attributes:
        worker_keys: Keys of the port on which its workers attach.
    """

    worker_keys: WorkerKeys
    label: str
    place: Place
    num_cores: int
    num_threads: int
    # Why its workers cannot have a network namespace of their own; "" if they can.
    unisolated: str

    def memory_of_each(self, num_workers: int) -> int | None:
        """Returns the bytes of memory that each worker of a job of `num_workers` may use here; None if that is not known."""

    def start(self, worker: str, mode: str) -> None:
        """Starts a process; a failure to start is reported as the process's end."""

    def terminate(self, worker: str) -> None:
        """Asks a process to end."""

    def kill(self, worker: str) -> None:
        """Ends a process and all it has started."""

    def drop(self, refs: Sequence[blobs_pb2.BlobRef]) -> None:
        """Deletes blobs that are no longer used."""

    def dismiss(self, reason: str, spare: bool = False) -> None:
        """Dismisses the host; `spare` means that the host has no fault, but no job needs it."""


class OwnHost(Host):
    """The pool's own machine."""

    def __init__(
        self,
        config: ServeConfig,
        launchers: Mapping[str, Launcher],
        processes: Processes,
        store: BlobStore,
        logs: Path,
        socket: str,
    ) -> None:
        """
        Args:
            config: The pool's configuration.
            launchers: Launchers by mode.
            processes: Starts worker processes.
            store: The pool's store.
            logs: Directory of the workers' logs.
            socket: The address at which workers attach.
        """
        self.worker_keys = WorkerKeys()
        self._launchers, self._processes, self._store, self._logs = launchers, processes, store, logs
        self._socket, self._timing = socket, config.timing
        # What workers may read besides the store.
        self._data, self._of_one_run = config.data, config.of_one_run
        self.label, self.unisolated = "the pool's own machine", network_wall()
        several_hosts = config.network is not None
        # Networks by mode.
        self.networks = {
            mode: network_for(launcher.tunnels, several_hosts, config.open_servers, self.unisolated)
            for mode, launcher in launchers.items()
        }
        network = config.network
        self.place = Place(address=network.address, interface=network.interface) if network else Place()
        self.num_cores = len(os.sched_getaffinity(0))
        self.num_threads = config.num_threads or threads_each(self.num_cores, config.num_workers)
        self._bounds, self._num_workers = config.bounds, config.num_workers

    def memory_of_each(self, num_workers: int) -> int | None:
        return self._bounds.memory_of_each(min(num_workers, self._num_workers)) if self._num_workers else None

    def start(self, worker: str, mode: str) -> None:
        """Starts a process.

        Raises:
            OSError: The process cannot be started.
        """
        store = str(self._store.directory)
        folder = str(self._processes.folder(worker))
        data = tuple(map(str, self._data))
        config = WorkerConfig(self._socket, worker, store, folder, self._timing, data=data, reads_all=self._of_one_run)
        engine, log = self._launchers[mode].engine, self._logs / f"{worker}.log"
        folders = (Path("/"),) if self._of_one_run else self._data
        secret, reads = self.worker_keys.issue(worker), (self._store.directory, *folders)
        self._processes.start(
            worker,
            engine,
            self.networks[mode],
            config.environment(),
            secret,
            log,
            reads=reads,
            direct=self._of_one_run,
        )

    def terminate(self, worker: str) -> None:
        self._processes.terminate(worker)

    def kill(self, worker: str) -> None:
        self._processes.kill(worker)

    def drop(self, refs: Sequence[blobs_pb2.BlobRef]) -> None:
        for ref in refs:
            self._store.drop(ref)

    def dismiss(self, reason: str, spare: bool = False) -> None:
        """Does nothing: the pool's own machine stays until the pool ends."""


class JoinedHost(Host):
    """A host that joined the pool; instructions are sent to it on the stream that it has opened.

    Attributes:
        worker_keys: Keys of the workers on all joined hosts.
        name: The pool's name for it, which is never reused.
        called: The host's own name for itself.
        label: Its name in messages to people.
        num_workers: The number of workers that it offers.
        outbox: Messages that its stream will send.
        heard_s: When its last message came, by the monotonic clock.
    """

    def __init__(self, name: str, hello: host_pb2.Hello, outbox: Outbox, worker_keys: WorkerKeys) -> None:
        self.name, self.called, self.worker_keys = name, hello.name, worker_keys
        self.label = f"{_shown(hello.name)} ({hello.address})"
        self.num_workers = hello.num_workers
        self.place = Place(name, hello.address, hello.interface)
        self.unisolated = _shown(hello.unisolated)
        self.num_cores = hello.num_cores
        self.num_threads = threads_each(self.num_cores, hello.num_workers)
        self.outbox = outbox
        self.heard_s = time.monotonic()
        self._worker_memory_bytes, self._all_memory_bytes = hello.worker_memory_bytes, hello.all_memory_bytes

    def memory_of_each(self, num_workers: int) -> int | None:
        shared = self._all_memory_bytes // max(1, min(num_workers, self.num_workers))
        return min(self._worker_memory_bytes, shared) or None

    def tell(self, **kind: Any) -> None:
        """Sends an instruction, by its kind."""
        self.outbox.put(host_pb2.HostInstruction(**kind).SerializeToString())

    def start(self, worker: str, mode: str) -> None:
        """Asks the host to start a process, and sends it the worker's secret, which no other host receives."""
        self.tell(start=host_pb2.StartWorker(worker=worker, mode=mode, secret=self.worker_keys.issue(worker)))

    def terminate(self, worker: str) -> None:
        self.tell(signal=host_pb2.SignalWorker(worker=worker, signal=signal.SIGTERM))

    def kill(self, worker: str) -> None:
        self.tell(signal=host_pb2.SignalWorker(worker=worker, signal=signal.SIGKILL))

    def drop(self, refs: Sequence[blobs_pb2.BlobRef]) -> None:
        self.tell(drop=host_pb2.DropBlobs(blobs=refs))

    def dismiss(self, reason: str, spare: bool = False) -> None:
        self.tell(dismissal=host_pb2.Dismissal(reason=reason, spare=spare))
        self.outbox.close()


def threads_each(num_cores: int, num_workers: int) -> int:
    """Returns how many threads an operation may use in each of `num_workers` workers that share `num_cores` cores."""
    return max(1, num_cores // max(1, num_workers))


def check(config: ServeConfig) -> None:
    """Refuses a configuration without any workers, or one that would let strangers add hosts.

    Raises:
        UsageError: The configuration is refused.
    """
    if config.network is not None and not config.token:
        raise UsageError(
            "A pool that takes hosts needs --token-file: a host that joins receives clients' programs and data. Received: "
            f"trusted_network={config.network.cidr}"
        )
    if config.join_token is not None and config.join_token == config.token:
        raise UsageError(
            "The hosts' token equals the pool's, so a host could do all that clients may: expected different tokens in the "
            "files of --token-file and --join-token-file."
        )
    _check_placing(config)
    least = 1 if config.network is None else 0
    if config.num_workers < least:
        raise UsageError(
            "A pool has at least 1 worker, or takes hosts that bring some (--trusted-network INTERFACE). Received: "
            f"workers={config.num_workers}"
        )


def _check_placing(config: ServeConfig) -> None:
    placing, network = config.placing, config.network
    if placing is None:
        return
    if network is None or not config.join_token:
        raise UsageError("Hosts that a scheduler brings need a --trusted-network, and a token of their own.")
    limits = config.limits
    if placing.most > limits.hosts or placing.most * placing.slots > limits.joined_workers:
        raise UsageError(
            f"A pool has {limits.hosts} hosts and {limits.joined_workers} workers on them at most, unless it is served with "
            f"--limit hosts=N --limit joined_workers=N. Received: hosts={placing.least}..{placing.most} slots={placing.slots}"
        )
    if tokens.is_local(config.listen) and not ipaddress.ip_address(network.address).is_loopback:
        raise UsageError(
            f"The scheduler's hosts cannot reach the address on which the pool listens: expected --listen "
            f"{network.address}:7077, or another address that they reach. Received: listen={config.listen}"
        )


def admit(
    hello: host_pb2.Hello,
    config: ServeConfig,
    versions: Mapping[str, str],
    joined: Iterable[JoinedHost],
    time_s: float,
) -> None:
    """Checks whether a host may join.

    Args:
        hello: The host's first message.
        config: The pool's configuration.
        versions: The pool's versions, from `fdt.base.versions.host_versions`.
        joined: The hosts that have joined.
        time_s: Now, in seconds since the epoch.

    Raises:
        UsageError: The pool takes no hosts or no more hosts; the host is outside the pool's trusted network, differs in
            --open-servers or its clock, or offers an invalid number of workers.
        VersionError: The host's versions are not the pool's.
    """
    if config.network is None:
        raise UsageError(
            "The pool takes no hosts: what workers of several hosts say to each other is neither encrypted nor "
            "authenticated, so it must be told which network to trust with it. Start the pool with "
            "--trusted-network INTERFACE."
        )
    _check_versions(hello, versions)
    apart_s = hello.time_s - time_s
    if hello.time_s and abs(apart_s) > _CLOCKS_APART_S:
        raise UsageError(
            f"The clocks of the host {_shown(hello.name)} and of the pool are {abs(apart_s):.0f} s apart, so which of several "
            f"workers failed first could not be told. Expected at most {_CLOCKS_APART_S:.0f} s: set both by the network's time "
            f"(NTP; `timedatectl set-ntp true`). Received: the host is {'ahead' if apart_s > 0 else 'behind'}"
        )
    if not holds(config.network, hello.address):
        raise UsageError(
            f"The host's address is not on the pool's trusted network. Expected one of {config.network.cidr}: name the "
            f"interface that leads there with --trusted-network on the host. Received: address={hello.address}"
        )
    if hello.open_servers != config.open_servers:
        raise UsageError(
            "--open-servers is for all hosts of a pool, or none: give it where the pool is served and on each host, or "
            f"nowhere. Received: on the pool {config.open_servers}, on the host {hello.open_servers}"
        )
    limits = config.limits
    if not 1 <= hello.num_workers <= limits.joined_workers or not hello.interface:
        raise UsageError(
            f"A host offers 1 to {limits.joined_workers} workers on a named interface. Received: "
            f"slots={hello.num_workers} interface={_shown(hello.interface)}"
        )
    others = list(joined)
    offered = sum(host.num_workers for host in others) + hello.num_workers
    if len(others) >= limits.hosts or offered > limits.joined_workers:
        raise UsageError(
            f"The pool is as large as it may be: {limits.hosts} hosts and {limits.joined_workers} workers on them. Its "
            "operator can let more in with --limit hosts=N --limit joined_workers=N. Received: "
            f"{len(others) + 1} hosts, {offered} workers"
        )


def check_tunnels(parts: Iterable[Host]) -> None:
    """Refuses a job whose processes would have to open servers on the machines' own network to connect.

    Args:
        parts: The hosts on which the job has processes.

    Raises:
        UsageError: A host cannot give the job's processes a network namespace of their own.
    """
    lacking = [f"{host.label}: {host.unisolated}" for host in parts if host.unisolated]
    if lacking:
        raise UsageError(
            "An asynchronous job over several hosts runs TensorFlow's servers, which execute the graphs of everybody who can "
            f"connect to them; so each host must give them a network of their own, which is missing on {'; '.join(lacking)}. "
            f"Remedy: {REMEDY}; or, if nobody else can reach the hosts on any network, serve and join with --open-servers."
        )


def _check_versions(hello: host_pb2.Hello, ours: Mapping[str, str]) -> None:
    different = [name for name, version in ours.items() if hello.versions.get(name, "") != version]
    if different:
        told = "; ".join(
            f"{name} {_shown(hello.versions.get(name, '')) or 'none'} on the host, {ours[name] or 'none'} in the pool"
            for name in different
        )
        raise VersionError(
            f"The host {_shown(hello.name)} has other versions than the pool: {told}. All hosts of a pool need the same: "
            "install them from the same checkout with `make install`, on both sides."
        )


def _shown(text: str) -> str:
    """Returns text from another machine for a message: shortened, and without unprintable characters."""
    return "".join(c for c in text[:_MAX_NAME] if c.isprintable())
