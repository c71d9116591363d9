"""Isolates a worker process's network: on Linux, a namespace that holds its job's loopback and nothing else.

Making a namespace needs no privilege if the system lets users make some. As a program, this module tries to make one and
prints the error; therefore it imports the standard library only.
"""

import ctypes
import enum
import fcntl
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
# struct ifreq: a name, flags, and padding for its other members.
_IFREQ = struct.Struct("16sh22x")

_PROBE_LIMIT_S = 20.0
REMEDY = (
    "allow users to make namespaces (sysctl user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns=0; in a "
    "container: the capability SYS_ADMIN), or run as root"
)


class Network(enum.Enum):
    """The network of one engine's processes."""

    # The machine's own network.
    HOST = "host"
    # One namespace for all processes: synchronous ranks connect over its loopback.
    SHARED = "shared"
    # A namespace for each process.
    OWN = "own"
    # A namespace for each process, and a gateway to the pool and to the job's other hosts (`fdt.worker.gateway`).
    TUNNEL = "tunnel"


def network_for(tunnels: bool, several_hosts: bool, open_servers: bool, missing: str) -> Network:
    """Returns the network of an engine's processes.

    Args:
        tunnels: Whether the engine's processes reach other hosts through a tunnel.
        several_hosts: Whether jobs may span hosts.
        open_servers: Whether the operator lets the processes use the machine's own network (`--open-servers`).
        missing: Why no namespace can be made; "" if one can.
    """
    if missing or (several_hosts and (open_servers or not tunnels)):
        return Network.HOST
    if several_hosts:
        return Network.TUNNEL
    return Network.OWN if tunnels else Network.SHARED


def describe(networks: Mapping[str, Network], missing: str) -> str:
    """Returns a line for the operator: which network worker processes see, and the remedy if that is the machine's.

    Args:
        networks: Networks by mode.
        missing: Why no namespace can be made; "" if one can.
    """
    if missing:
        return f"worker processes see this machine's network ({missing}). Remedy: {REMEDY}"
    seeing = [mode for mode, network in networks.items() if network is Network.HOST]
    if not seeing:
        return "worker processes see no network but their job's"
    return f"worker processes see no network but their job's, except for --mode {', '.join(seeing)}: this machine's"


def isolate() -> None:
    """Puts this process, which must have one thread, into a network namespace of its own with loopback up.

    Raises:
        OSError: The system does not allow it.
    """
    unshare(_CLONE_NEWNET)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        _, flags = _IFREQ.unpack(fcntl.ioctl(any_socket, _SIOCGIFFLAGS, _IFREQ.pack(b"lo", 0)))
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, _IFREQ.pack(b"lo", flags | _IFF_UP))


def network_wall() -> str:
    """Returns why child processes cannot have a network namespace; "" if they can. A child process tries it."""
    if sys.platform != "linux":
        return f"network namespaces are Linux's. Received: platform={sys.platform}"
    try:
        from fdt.base import interpreter

        command = interpreter.of_file(__file__)
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"a process that was to try did not end: {error}"
    if done.returncode == 0:
        return ""
    return (done.stdout or done.stderr).strip()[-200:] or f"a process that tried ended with status {done.returncode}"


def unshare(flags: int) -> bool:
    """Gives this process, which must have one thread, namespaces of its own.

    Args:
        flags: The namespaces, as unshare(2) names them.

    Returns:
        Whether this needed a user namespace, too, in which the process has all capabilities.

    Raises:
        OSError: The system does not allow it.
    """
    uid, gid = os.geteuid(), os.getegid()
    try:
        _unshare(flags)
        return False
    except PermissionError:
        _unshare(flags | _CLONE_NEWUSER)
    # Maps the user to itself, so that files keep their owner.
    _write("setgroups", "deny")
    _write("uid_map", f"{uid} {uid} 1")
    _write("gid_map", f"{gid} {gid} 1")
    return True


def _unshare(flags: int) -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(flags):
        number = ctypes.get_errno()
        kind = "network" if flags & _CLONE_NEWNET else "mount"
        raise OSError(number, f"no {kind} namespace: {os.strerror(number)}")


def _write(name: str, content: str) -> None:
    with open(f"/proc/self/{name}", "w") as file:
        file.write(content)


def main() -> int:
    """Tries to make a namespace; returns the exit status."""
    try:
        isolate()
    except OSError as error:
        print(error.strerror or error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
