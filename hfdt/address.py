"""Holds Horovod to the address on which its ranks are to meet.

Horovod 0.28.1 connects its ranks twice: first for itself, on the interface that HOROVOD_GLOO_IFACE names, then for the
process set in which all collectives run. The second time it forgets the interface (`GlooContext::InitializeForProcessSet`),
and Gloo listens on whatever the machine's name resolves to: an address that strangers can reach, or loopback where another
host is to connect. Nothing but the machine's name can be set, and that only by its administrator.

Horovod's library asks for the name in this one place, by calling `gethostname`. So its reference to that function (an entry
of its global offset table) is turned to a function that answers with the address, which resolves to itself.
"""

import ctypes
import socket
import struct
from pathlib import Path
from typing import Any

from fdt.errors import WorkerError
from hfdt.got_patch import turn

_GETHOSTNAME = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)
# What C code points to must not be collected.
_answers: list[Any] = []


def hold_to(library: Path, address: str) -> None:
    """Makes Gloo in a library that is loaded listen on an address.

    Args:
        library: Horovod's, as this process has loaded it.
        address: IPv4 address of this machine.

    Raises:
        WorkerError: It cannot be done, and the machine's name does not resolve to the address either.
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
    """Makes `gethostname`, as called by one library of this process, answer with another name.

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
    """Returns the address that Gloo would take for a name: the first that is this machine's."""
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
