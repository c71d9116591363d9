"""Describes the processes of a job on several hosts (one per host), so that they find each other."""

import dataclasses
import json
from collections.abc import Mapping

from fdt.worker.runtime import inner_address

_VARIABLE = "FDT_CLUSTER"


@dataclasses.dataclass(frozen=True)
class Member:
    """A host.

    Attributes:
        address: The host's address on the trusted network.
        num_workers: The job's workers on this host.
    """

    address: str
    num_workers: int


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The hosts of a job. The first host's process uses the other hosts' devices.

    Attributes:
        members: The hosts, in the order of their processes' ranks.
        tunnelled: Whether each process has a network namespace of its own, joined to the others by tunnels.
    """

    members: tuple[Member, ...]
    tunnelled: bool

    def address(self, rank: int) -> tuple[str, int]:
        """Returns the address and port on which a process serves; port 0 lets the system choose."""
        return inner_address(rank) if self.tunnelled else (self.members[rank].address, 0)

    def environment(self) -> dict[str, str]:
        """Returns the environment variable that `read_cluster` reads."""
        return {_VARIABLE: json.dumps(dataclasses.asdict(self))}


def read_cluster(environment: Mapping[str, str]) -> Cluster | None:
    """Returns the cluster that a process is part of; None if the job is one process."""
    if _VARIABLE not in environment:
        return None
    fields = json.loads(environment[_VARIABLE])
    return Cluster(tuple(Member(**member) for member in fields["members"]), fields["tunnelled"])
