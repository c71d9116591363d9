"""Joins the processes of a job on several hosts: one a host, and how they find each other."""

import dataclasses
import json
from collections.abc import Mapping

from fdt.worker.runtime import inner_address

_VARIABLE = "FDT_CLUSTER"


@dataclasses.dataclass(frozen=True)
class Member:
    """A host.

    Attributes:
        address: On the trusted network.
        num_workers: Of the job, on this host.
    """

    address: str
    num_workers: int


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The hosts of a job. The first one's process drives the others' devices.

    Attributes:
        members: By the rank of their processes.
        tunnelled: Whether each process has a network of its own, joined to the others'.
    """

    members: tuple[Member, ...]
    tunnelled: bool

    def address(self, rank: int) -> tuple[str, int]:
        """Returns on which address and port a process serves; port 0 if the system is to choose."""
        return inner_address(rank) if self.tunnelled else (self.members[rank].address, 0)

    def environment(self) -> dict[str, str]:
        """Returns the variable that `read_cluster` reads."""
        return {_VARIABLE: json.dumps(dataclasses.asdict(self))}


def read_cluster(environment: Mapping[str, str]) -> Cluster | None:
    """Returns the cluster that a process is part of; None if the job is one process."""
    if _VARIABLE not in environment:
        return None
    fields = json.loads(environment[_VARIABLE])
    return Cluster(tuple(Member(**member) for member in fields["members"]), fields["tunnelled"])
