"""Network namespaces, each with a cable to one switch (a bridge in a namespace of its own).

Nothing outside these namespaces is touched, so removing them removes all: devices, filters, addresses. Their names carry the
number of the process that made them; `clear` removes those whose process is gone.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from lab import cores
from lab.link import Link

PREFIX = "fdt-lab"
POOL = "pool"
DEVICE = "eth0"
# A network of its own: several laboratories can be there at once, all with these addresses.
_NETWORK = "10.214.0"
MAX_HOSTS = 200
_SWITCH = "switch"
_COMMAND_LIMIT_S = 30.0
_END_LIMIT_S = 10.0


class LabError(RuntimeError):
    """This machine cannot have a laboratory, or a command for it failed."""


class Network:
    """`with Network(hosts=4, link=Link(1e8)) as network:` for the length of the block.

    Members are called "pool", "host1", "host2", …; all have a link of the same kind, "pool" too.
    """

    def __init__(self, hosts: int, link: Link, cores: float | None = None) -> None:
        """Notes what to make.

        Args:
            hosts: In [1, MAX_HOSTS], besides the pool's namespace.
            link: Of each member.
            cores: How many cores each host has, as a number; None for all of the machine's.
        """
        if not 1 <= hosts <= MAX_HOSTS:
            raise LabError(f"A laboratory has 1 to {MAX_HOSTS} hosts. Received: {hosts}")
        self.hosts = tuple(f"host{number}" for number in range(1, hosts + 1))
        self.members = (POOL, *self.hosts)
        self.link, self._cores = link, cores
        self.has_cores = cores is not None

    def __enter__(self) -> Self:
        check_machine()
        try:
            for name in (_SWITCH, *self.members):
                _ip("netns", "add", self.namespace(name))
                _ip("-n", self.namespace(name), "link", "set", "lo", "up")
            switch = self.namespace(_SWITCH)
            _ip("-n", switch, "link", "add", _SWITCH, "type", "bridge")
            _ip("-n", switch, "link", "set", _SWITCH, "up")
            for name in self.members:
                self._connect(name)
            for name in self.hosts if self._cores is not None else ():
                cores.make(self.namespace(name), self._cores)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._remove()

    def namespace(self, member: str) -> str:
        """Returns the name of a member's namespace."""
        return f"{PREFIX}-{os.getpid()}-{member}"

    def address(self, member: str) -> str:
        """Returns a member's address, IPv4."""
        return f"{_NETWORK}.{self.members.index(member) + 1}"

    def inside(self, member: str, command: Sequence[str]) -> list[str]:
        """Returns the command that runs another in a member's namespace, as the same process."""
        inside = ["ip", "netns", "exec", self.namespace(member), *command]
        is_bound = self._cores is not None and member in self.hosts
        return cores.within(self.namespace(member), inside) if is_bound else inside

    def pids(self, *members: str) -> list[int]:
        """Returns the processes that run in the members' namespaces, all of them unless told."""
        return _pids([self.namespace(member) for member in members or self.members])

    def set_link(self, member: str, state: str) -> None:
        """Cuts a member's cable ("down"), or mends it ("up")."""
        _ip("-n", self.namespace(member), "link", "set", DEVICE, state)

    def traffic(self) -> dict[str, tuple[int, int]]:
        """Returns, for each member, the bytes it has sent and received over its link so far, headers included."""
        # Seen from the switch everything is the other way round. A device's counters leave out what its filter dropped.
        text = _ip("-n", self.namespace(_SWITCH), "-json", "-statistics", "link", "show")
        counted = {each["ifname"]: each["stats64"] for each in json.loads(text) if "stats64" in each}
        return {name: (counted[name]["rx"]["bytes"], counted[name]["tx"]["bytes"]) for name in self.members}

    def _connect(self, member: str) -> None:
        own, switch = self.namespace(member), self.namespace(_SWITCH)
        cable = ["type", "veth", "peer", "name", member, "netns", switch]
        _ip("-n", own, "link", "add", DEVICE, *cable)
        # The one that every kernel has and lets a namespace choose: figures do not depend on what this machine prefers.
        _set(own, "net/ipv4/tcp_congestion_control", "reno")
        for namespace, device in ((own, DEVICE), (switch, member)):
            # What arrives as one frame of 64 kB would pass at once after a pause, however small the bucket.
            _ip("-n", namespace, "link", "set", device, "gso_max_segs", str(self.link.segments))
            # From one member to another a frame passes its own device, then the other's at the switch: one of them delays.
            for words in self.link.filters(delayed=device == DEVICE):
                _tc("-n", namespace, "qdisc", "add", "dev", device, *words)
        _ip("-n", switch, "link", "set", member, "master", _SWITCH)
        _ip("-n", switch, "link", "set", member, "up")
        _ip("-n", own, "address", "add", f"{self.address(member)}/24", "dev", DEVICE)
        _ip("-n", own, "link", "set", DEVICE, "up")

    def _remove(self) -> None:
        existing = _namespaces()
        _delete([name for name in map(self.namespace, (_SWITCH, *self.members)) if name in existing])
        for name in self.hosts if self._cores is not None else ():
            cores.remove(self.namespace(name))


def check_machine() -> None:
    """Looks for what a laboratory needs.

    Raises:
        LabError: This process may not make network namespaces, or a program is missing.
    """
    if os.geteuid() != 0:
        raise LabError("A laboratory is made of network namespaces, which are root's. Run it as root (sudo).")
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            raise LabError(f"A laboratory needs `{program}`, which is not on the PATH. Install iproute2.")


def clear() -> list[str]:
    """Removes laboratories whose process is gone, and ends what still runs in them.

    Returns:
        The namespaces that were removed.
    """
    check_machine()
    stale = [name for name in _namespaces() if not Path("/proc", _owner(name)).exists()]
    _delete(stale)
    return stale


def running() -> list[str]:
    """Returns the namespaces of all laboratories on this machine."""
    check_machine()
    return _namespaces()


def _owner(namespace: str) -> str:
    return namespace.removeprefix(f"{PREFIX}-").partition("-")[0]


def _namespaces() -> list[str]:
    pattern = re.compile(rf"{PREFIX}-\d+-\w+")
    names = [line.split()[0] for line in _ip("netns", "list").splitlines() if line.strip()]
    return [name for name in names if pattern.fullmatch(name)]


def _pids(namespaces: Sequence[str]) -> list[int]:
    return [int(pid) for name in namespaces for pid in _ip("netns", "pids", name).split()]


def _delete(namespaces: Sequence[str]) -> None:
    """Ends all processes in namespaces and removes these; goes on if one of them cannot be removed."""
    _end_processes(namespaces)
    failed = []
    for name in namespaces:
        try:
            _ip("netns", "delete", name)
        except LabError as error:
            failed.append(str(error))
    if failed:
        raise LabError("\n".join(failed))


def _end_processes(namespaces: Sequence[str]) -> None:
    """A namespace without a name lives on for as long as a process is in it, so these go first."""
    deadline_s = time.monotonic() + _END_LIMIT_S
    while pids := _pids(namespaces):
        if time.monotonic() > deadline_s:
            raise LabError(f"Processes {pids} do not end.")
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)


def _set(namespace: str, setting: str, value: str) -> None:
    # The `sysctl` command is not part of iproute2.
    _run(["ip", "netns", "exec", namespace, "sh", "-c", f"echo {value} > /proc/sys/{setting}"])


def _ip(*arguments: str) -> str:
    return _run(["ip", *arguments])


def _tc(*arguments: str) -> str:
    return _run(
        ["tc", *arguments], hints={"netem": "This kernel has no netem (CONFIG_NET_SCH_NETEM): leave out the latency."}
    )


def _run(command: Sequence[str], hints: Mapping[str, str] | None = None) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_LIMIT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise LabError(f"No answer within {_COMMAND_LIMIT_S:.0f} s from: {' '.join(command)}") from error
    if done.returncode:
        hint = "".join(f"{text}\n" for word, text in (hints or {}).items() if word in command)
        raise LabError(f"{hint}$ {' '.join(command)}\n{done.stderr.strip()}")
    return done.stdout
