"""Controls a worker's tunnel: starts its process, gives it sockets of the worker's network, and requests connections."""

import json
import os
import socket
import subprocess
import threading
from collections.abc import Sequence
from typing import Any

from fdt.base import interpreter
from fdt.errors import WorkerError, WorkerLostError
from fdt.worker.runtime import Rendezvous, inner_address
from fdt.worker.tunnel import MAX_MESSAGE_BYTES, PARENT

# The most time for a job's processes to exchange their tunnels' addresses, and for a tunnel to answer a request.
_MEET_S = 60.0
_ANSWER_S = 30.0


class Gateway:
    """Controls the tunnel of this worker. Is started before the worker enters its network namespace, and used inside it."""

    def __init__(self, process: subprocess.Popen[bytes], orders: socket.socket, blanks: socket.socket) -> None:
        self._process, self._orders, self._blanks = process, orders, blanks

    @classmethod
    def start(cls) -> "Gateway":
        """Starts a tunnel in the network that this process has now. The tunnel ends with this process."""
        orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        blanks, given = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, given:
            numbers = (theirs.fileno(), given.fileno())
            process = subprocess.Popen(
                interpreter.of_module("fdt.worker.tunnel", *map(str, numbers)),
                env={**os.environ, PARENT: str(os.getpid())},
                stdin=subprocess.DEVNULL,
                pass_fds=numbers,
            )
        orders.settimeout(_ANSWER_S)
        return cls(process, orders, blanks)

    def serve(self) -> None:
        """Starts the thread that gives the tunnel sockets of this process's network."""
        threading.Thread(target=self._hand_out, name="fdt-gateway", daemon=True).start()

    def to_pool(self, address: str) -> str:
        """Returns the address at which this process reaches the pool, which is at "host:port" in the machine's network.

        Raises:
            WorkerLostError: The tunnel has ended.
        """
        host, _, port = address.rpartition(":")
        return f"127.0.0.1:{self._ask('pool', [host.strip('[]'), int(port)])['port']}"

    def meet(self, rank: int, addresses: Sequence[str], rendezvous: Rendezvous) -> None:
        """Connects the networks of a job's processes: in each, rank k is reached at `fdt.worker.runtime.inner_address(k)`.

        Args:
            rank: This process's rank.
            addresses: The address of each process's host on the trusted network, by rank.
            rendezvous: Through it the processes exchange their tunnels' ports and certificates.

        Raises:
            WorkerError: A tunnel has ended (WorkerLostError) or cannot be opened; or a process did not announce its tunnel.
        """
        own = self._ask("open", addresses[rank])
        rendezvous.put(_key(rank), json.dumps(own).encode())
        told = [json.loads(rendezvous.wait(_key(k), _MEET_S)) for k in range(len(addresses))]
        members = [
            [address, each["port"], each["certificate"], inner_address(k)]
            for k, (address, each) in enumerate(zip(addresses, told, strict=True))
        ]
        self._ask("meet", {"rank": rank, "members": members})

    def seal(self) -> None:
        """Makes the tunnel refuse further requests, for a job that needs no tunnel; `meet` does so by itself.

        Raises:
            WorkerLostError: The tunnel has ended.
        """
        self._ask("seal", None)

    def _ask(self, kind: str, argument: object) -> dict[str, Any]:
        try:
            self._orders.send(json.dumps({kind: argument}).encode())
            raw = self._orders.recv(MAX_MESSAGE_BYTES)
        except OSError as error:
            raise WorkerLostError(f"The tunnel of this worker does not answer: {error}") from error
        if not raw:
            raise WorkerLostError("The tunnel of this worker has ended.")
        answer: dict[str, Any] = json.loads(raw)
        if "error" in answer:
            raise WorkerError(f"The tunnel of this worker could not be opened: {answer['error']}")
        return answer

    def _hand_out(self) -> None:
        while self._blanks.recv(1):
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as blank:
                socket.send_fds(self._blanks, [b"!"], [blank.fileno()])


def _key(rank: int) -> str:
    return f"tunnel/{rank}"
