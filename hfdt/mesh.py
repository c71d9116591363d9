"""A connection from every rank to every other, for values that are small and needed at once.

Horovod's ranks agree on every collective before it begins, which takes milliseconds whatever its size (docs/decisions/0043).
The sums of a layer's moments are some hundred bytes, and all that follows waits for them: here each rank sends its part
to all others at once, and puts the parts together itself.
"""

import hmac
import json
import secrets
import socket
import struct
import time

import numpy as np

from fdt.errors import WorkerError
from fdt.runtime import MeetingPlace

# Two messages must fit into what the kernel keeps for a receiver: a rank may be one exchange ahead of another.
MAX_MESSAGE_BYTES = 1 << 15
_BUFFER_BYTES = 4 * MAX_MESSAGE_BYTES
_MEET_S, _HELLO_S = 60.0, 5.0
# How long a rank may wait for another in the middle of a step. One that has stopped is noticed earlier (`fdt.pool.stall`).
_EXCHANGE_S = 3600.0
_TOKEN_BYTES = 32
_HELLO = struct.Struct(f"<{_TOKEN_BYTES}sI")
# Which exchange it is, and bytes that follow.
_HEADER = struct.Struct("<II")


class Mesh:
    """One rank's connections. Exchanges are made one after the other, on all ranks in the same order.

    Attributes:
        seconds: Spent in exchanges so far.
        num_bytes: Handed to them so far.
    """

    def __init__(self, rank: int, num_ranks: int, address: str, meeting: MeetingPlace) -> None:
        """Meets the other ranks.

        Args:
            rank: Of this one.
            num_ranks: Of the job.
            address: IPv4 address of this machine, on which the ranks reach each other.
            meeting: Where they tell each other their ports, and what proves that a connection is theirs.

        Raises:
            WorkerError: A rank does not come.
        """
        self._rank, self._num_exchanges = rank, 0
        self.seconds, self.num_bytes = 0.0, 0
        token = secrets.token_bytes(_TOKEN_BYTES)
        with socket.create_server((address, 0), backlog=num_ranks) as server:
            place = {"address": address, "port": server.getsockname()[1], "token": token.hex()}
            meeting.put(f"mesh/{rank}", json.dumps(place).encode())
            found = {other: _connected(meeting, other, rank) for other in range(rank)}
            found |= _accepted(server, rank, token, set(range(rank + 1, num_ranks)))
        self._others = dict(sorted(found.items()))
        for connection in self._others.values():
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(_EXCHANGE_S)

    def exchange(self, mine: bytes) -> list[bytes]:
        """Returns what every rank hands in, in their order.

        Args:
            mine: At most MAX_MESSAGE_BYTES; the ranks' need not be of one size.

        Raises:
            WorkerError: A rank does not answer, or is elsewhere in the step.
        """
        began_s = time.perf_counter()
        self._num_exchanges += 1
        message = _HEADER.pack(self._num_exchanges & 0xFFFFFFFF, len(mine)) + mine
        for other, connection in self._others.items():
            try:
                connection.sendall(message)
            except OSError as error:
                raise _lost(other, error) from error
        parts = {self._rank: mine}
        for other, connection in self._others.items():
            parts[other] = self._received(other, connection)
        self.seconds += time.perf_counter() - began_s
        self.num_bytes += len(mine)
        return [parts[rank] for rank in sorted(parts)]

    def _received(self, other: int, connection: socket.socket) -> bytes:
        try:
            number, num_bytes = _HEADER.unpack(_exactly(connection, _HEADER.size))
            if number != self._num_exchanges & 0xFFFFFFFF or num_bytes > MAX_MESSAGE_BYTES:
                raise WorkerError(
                    f"Rank {other} is at exchange {number} and rank {self._rank} at {self._num_exchanges}: their steps "
                    "differ. This is a fault of the pool, not of the script: please report it with the script."
                )
            return _exactly(connection, num_bytes)
        except OSError as error:
            raise _lost(other, error) from error

    def close(self) -> None:
        """Ends the connections."""
        for connection in self._others.values():
            connection.close()


def _connected(meeting: MeetingPlace, other: int, rank: int) -> socket.socket:
    place = json.loads(meeting.wait(f"mesh/{other}", _MEET_S))
    try:
        connection = socket.create_connection((place["address"], place["port"]), timeout=_MEET_S)
        _make_room(connection)
        connection.sendall(_HELLO.pack(bytes.fromhex(place["token"]), rank))
    except OSError as error:
        raise _lost(other, error) from error
    return connection


def _accepted(server: socket.socket, own: int, token: bytes, missing: set[int]) -> dict[int, socket.socket]:
    """Takes one connection of each rank that is missing; others are closed."""
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


def combined(parts: list[bytes], arrays: list[np.ndarray], combine: np.ufunc) -> list[np.ndarray]:
    """Puts the ranks' arrays together, in the order of the ranks, so that all of them get the same bit for bit.

    Args:
        parts: Of each rank the bytes of all its arrays.
        arrays: This rank's: the same shapes and types.
        combine: np.add, np.maximum or np.minimum.
    """
    result, start = [], 0
    for array in arrays:
        end = start + array.nbytes
        each = [np.frombuffer(part[start:end], array.dtype) for part in parts]
        total = each[0]
        for other in each[1:]:
            total = combine(total, other)
        result.append(total.reshape(array.shape))
        start = end
    return result
