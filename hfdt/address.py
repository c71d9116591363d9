"""Makes Horovod's ranks connect on the address that the pool assigned to them.

Horovod 0.28.1 connects its ranks twice: first for itself, on the interface that HOROVOD_GLOO_IFACE names, then for the
process set in which all collectives run. The second time it ignores the interface (`GlooContext::InitializeForProcessSet`),
and Gloo listens on the address to which the machine's name resolves: one that strangers can reach, or loopback where another
host has to connect. The only setting for this is the machine's name, which only its administrator can change.

Only there does Horovod's library ask for the name, by calling `gethostname`. So its reference to that function (an entry of
its global offset table) is replaced by a function that returns the address, which resolves to itself.
"""

import ctypes
import socket
import struct
from pathlib import Path
from typing import Any

from fdt.errors import WorkerError
from hfdt.got_patch import turn

_GETHOSTNAME = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)
# Keeps the functions that C code points to from being collected.
_answers: list[Any] = []


def hold_to(library: Path, address: str) -> None:
    """Makes Gloo in a loaded library listen on an address.

    Args:
        library: The path of Horovod's library, which this process has loaded.
        address: IPv4 address of this machine.

    Raises:
        WorkerError: The library cannot be patched, and the machine's name does not resolve to the address.
    """
    try:
        answer_gethostname(library, address)
    except (OSError, ValueError, struct.error) as error:
        resolved = _resolved(socket.gethostname())
        if resolved != address:
            raise WorkerError(
                f"Horovod's ranks would meet on {resolved or 'no address'}, to which the name of this machine resolves, "
                f"and not on {address} as they are to. Let the name resolve to that address, with a line "
                f"'{address} {socket.gethostname()}' in /etc/hosts. ({error})"
            ) from error


def answer_gethostname(library: Path, name: str) -> None:
    """Makes `gethostname`, when called by one library of this process, return another name.

    Raises:
        ValueError, OSError, struct.error: See `hfdt.got_patch.turn`.
    """
    content = name.encode() + b"\0"

    def answer(buffer: int, size: int) -> int:
        if size < len(content):
            return -1
        ctypes.memmove(buffer, content, len(content))
        return 0

    function = _GETHOSTNAME(answer)
    _answers.append(function)
    turn(library, "gethostname", ctypes.cast(function, ctypes.c_void_p).value or 0)


def _resolved(name: str) -> str | None:
    """Returns the address that Gloo would use for a name: its first that belongs to this machine."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return None
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as trial:
            try:
                trial.bind(address)
            except OSError:
                continue
        return str(address[0])
    return None
