"""Exchanges small values over a connection from every rank to every other, or by memory that all ranks share.

Horovod's ranks agree on every collective before it begins, which takes milliseconds whatever its size (decisions 0043, 0110).
The sums of a layer's moments are some hundred bytes, and the rest of the step waits for them; so are all gradients of a small
model. In the mesh each rank sends its part to all others at once and combines the parts itself. This module opens the
connections; the exchanges are operations in C++ (`native/mesh.cc`). Ranks of one machine write what they send into memory that
they share, and the connections only tell that a rank has ended.
"""

import ctypes
import functools
import hmac
import ipaddress
import json
import os
import secrets
import socket
import struct
import time
from collections.abc import Sequence

import tensorflow as tf

from fdt.base.native import library
from fdt.errors import WorkerError
from fdt.program.layout import Combine
from fdt.worker.runtime import Rendezvous
from fdt.worker.shared_memory import ID_BYTES

# The most bytes that one exchange brings to a rank, its own included: over a network, between processes of one machine, and
# through memory that they share.
# Horovod's ring carries more in less time, since it sends each byte to one rank only.
_OVER_HOSTS_BYTES, _ONE_HOST_BYTES, _SHARED_BYTES = 1 << 18, 1 << 22, 1 << 28
# Of rows that all ranks swap at once. Each goes to one rank only, whoever carries it.
_SWAPPED_BYTES = 1 << 23
# A rank may be an exchange of some kilobytes ahead of another, and should not have to wait until that one reads.
_BUFFER_BYTES = 1 << 17
_MEET_S, _HELLO_S = 60.0, 5.0
# How long a rank waits for another within a step. `stall_detector.py` notices a stopped rank earlier.
_EXCHANGE_S = 3600.0
_TOKEN_BYTES = 32
_HELLO = struct.Struct(f"<{_TOKEN_BYTES}sI")
_COMBINE = {Combine.SUM: "SUM", Combine.MAX: "MAX", Combine.MIN: "MIN"}


class Mesh:
    """One rank's connections. Exchanges are made one after the other, on all ranks in the same order.

    Attributes:
        num_ranks: How many ranks the job has.
        is_shared: Whether exchanges go through memory that all ranks share.
        max_bytes: The most bytes of a rank's message; the same on all ranks.
        swapped_bytes: Of rows that all ranks together swap, how many bytes a step should give to the mesh; it carries more.
    """

    def __init__(self, rank: int, num_ranks: int, address: str, rendezvous: Rendezvous) -> None:
        """Connects to the other ranks.

        Args:
            rank: This rank.
            num_ranks: How many ranks the job has.
            address: IPv4 address of this machine, on which other ranks reach it; a loopback address if they are all here.
            rendezvous: Where ranks publish their ports, and the tokens that authenticate connections to them.

        Raises:
            WorkerError: A rank does not connect in time.
        """
        is_together = ipaddress.ip_address(address).is_loopback
        self.num_ranks = num_ranks
        self.max_bytes = (_ONE_HOST_BYTES if is_together else _OVER_HOSTS_BYTES) // num_ranks
        self.swapped_bytes = _SWAPPED_BYTES
        token = secrets.token_bytes(_TOKEN_BYTES)
        with socket.create_server((address, 0), backlog=num_ranks) as server:
            place = {"address": address, "port": server.getsockname()[1], "token": token.hex()}
            rendezvous.put(f"mesh/{rank}", json.dumps(place).encode())
            found = {other: _connected(rendezvous, other, rank) for other in range(rank)}
            found |= _accepted(server, rank, token, set(range(rank + 1, num_ranks)))
        for connection in found.values():
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # From here on the native library owns the connections and closes them.
        descriptors = [found[other].detach() for other in sorted(found)]
        self._number = ctypes.c_int64(
            _functions().fdt_mesh_open(
                rank,
                num_ranks,
                (ctypes.c_int * len(descriptors))(*descriptors),
                round(_EXCHANGE_S * 1000),
            )
        )
        self.is_shared = is_together and self._share(rank, rendezvous)
        if self.is_shared:
            self.max_bytes, self.swapped_bytes = _SHARED_BYTES // num_ranks, _SHARED_BYTES

    def _share(self, rank: int, rendezvous: Rendezvous) -> bool:
        """Has further exchanges go through memory, if all ranks have the same; returns whether they do."""
        if rank == 0:
            rendezvous.put("mesh/memory", secrets.token_hex(_TOKEN_BYTES).encode())
        key = rendezvous.wait("mesh/memory", _MEET_S).decode()
        descriptor = rendezvous.memory(key, _functions().fdt_mesh_memory_bytes(self.num_ranks))
        try:
            name = bytes(ID_BYTES) if descriptor is None else os.pread(descriptor, ID_BYTES, 0)
            with tf.device("/cpu:0"):
                names = self.gather(tf.constant([list(name)], tf.uint8), self.num_ranks, in_step=False).numpy()
            if not names.any() or (names != names[0]).any():
                return False
            if not _functions().fdt_mesh_share(self._number, descriptor):
                raise WorkerError("The memory that the ranks of this job share could not be mapped: is memory short?")
            return True
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def reduce(self, tensors: Sequence[tf.Tensor], combine: Combine, in_step: bool = True) -> list[tf.Tensor]:
        """Reduces the ranks' tensors in the order of the ranks, so that all ranks get the same result bit for bit.

        Args:
            tensors: Together at most `max_bytes`; of the same shapes and types on all ranks.
            combine: Sum, maximum or minimum.
            in_step: Whether the meter counts it as a step's exchange.

        Raises:
            tf.errors.UnavailableError: When the graph runs: a rank does not answer.
            tf.errors.InternalError: When the graph runs: a rank is at another exchange of the step.
        """
        operations, mesh = library("hfdt").ops, self._number.value
        return list(operations.fdt_mesh_reduce(values=tensors, mesh=mesh, combine=_COMBINE[combine], metered=in_step))

    def gather(self, tensor: tf.Tensor, num_rows: int, in_step: bool = True) -> tf.Tensor:
        """Returns all ranks' rows, in the order of ranks.

        Args:
            tensor: [own rows, ...]; together at most `max_bytes`.
            num_rows: How many rows all ranks have together.
            in_step: See `reduce`.

        Raises:
            tf.errors.UnavailableError, tf.errors.InternalError: As `reduce`.
        """
        operations, mesh = library("hfdt").ops, self._number.value
        return operations.fdt_mesh_gather(rows=tensor, mesh=mesh, num_rows=num_rows, metered=in_step)

    def swap(self, tensors: Sequence[tf.Tensor], counts: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Sends rows from each rank to each.

        Args:
            tensors: Each [rows, ...], as many rows in all of them; first come the rows for rank 0.
            counts: How many rows go to each rank; int32 [ranks].

        Returns:
            The rows that this rank gets, in the order of ranks, and how many from each; int32 [ranks].

        Raises:
            tf.errors.UnavailableError, tf.errors.InternalError: As `reduce`.
        """
        received, numbers = library("hfdt").ops.fdt_mesh_swap(values=tensors, counts=counts, mesh=self._number.value)
        return list(received), numbers

    def close(self) -> None:
        """Ends the connections."""
        _functions().fdt_mesh_close(self._number)


@functools.cache
def _functions() -> ctypes.CDLL:
    functions = library("hfdt").functions
    functions.fdt_mesh_open.restype = functions.fdt_mesh_memory_bytes.restype = ctypes.c_int64
    functions.fdt_mesh_share.restype = ctypes.c_bool
    return functions


def _connected(rendezvous: Rendezvous, other: int, rank: int) -> socket.socket:
    place = json.loads(rendezvous.wait(f"mesh/{other}", _MEET_S))
    try:
        connection = socket.create_connection((place["address"], place["port"]), timeout=_MEET_S)
        _make_room(connection)
        connection.sendall(_HELLO.pack(bytes.fromhex(place["token"]), rank))
    except OSError as error:
        raise _lost(other, error) from error
    return connection


def _accepted(server: socket.socket, own: int, token: bytes, missing: set[int]) -> dict[int, socket.socket]:
    """Accepts one authenticated connection from each missing rank; closes others."""
    found: dict[int, socket.socket] = {}
    end_s = time.monotonic() + _MEET_S
    while missing - set(found):
        server.settimeout(max(0.001, end_s - time.monotonic()))
        try:
            connection, _ = server.accept()
        except TimeoutError as error:
            ranks = ", ".join(map(str, sorted(missing - set(found))))
            raise WorkerError(f"Within {_MEET_S:.0f} s no connection came to rank {own} from rank {ranks}.") from error
        try:
            connection.settimeout(_HELLO_S)
            said, rank = _HELLO.unpack(_exactly(connection, _HELLO.size))
        except OSError:
            connection.close()
            continue
        if hmac.compare_digest(said, token) and rank in missing and rank not in found:
            _make_room(connection)
            found[rank] = connection
        else:
            connection.close()
    return found


def _make_room(connection: socket.socket) -> None:
    for which in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        connection.setsockopt(socket.SOL_SOCKET, which, _BUFFER_BYTES)


def _exactly(connection: socket.socket, num_bytes: int) -> bytes:
    raw = bytearray(num_bytes)
    view, done = memoryview(raw), 0
    while done < num_bytes:
        count = connection.recv_into(view[done:])
        if not count:
            raise ConnectionResetError("The other end was closed.")
        done += count
    return bytes(raw)


def _lost(other: int, error: OSError) -> WorkerError:
    return WorkerError(f"The connection to rank {other} of this job is lost: {error}")
