"""How an asynchronous job becomes processes: one a host. On one host it opens no port.

Over several hosts every process is a `tf.distribute.Server`, which listens on all interfaces of its host and authenticates
nobody; so this form needs the operator's word for the network (`--trusted-network`), without which no host can join a pool.
"""

from collections.abc import Mapping

from fdt.rendezvous import KeyValueServer
from fdt.runtime import Placement, Rendezvous
from nfdt.cluster import Cluster, Member
from nfdt.options import read_options


class ParameterServerLauncher:
    """See `fdt.runtime.Launcher`."""

    engine = "nfdt.runtime:ParameterServerEngine"

    def check(self, options: Mapping[str, str]) -> None:
        """Reads the options, as the job's process will."""
        read_options(options)

    def num_processes(self, num_workers: int) -> int:
        """Workers and parameter servers of a host are devices of one process."""
        return 1

    def needs_pool(self, options: Mapping[str, str]) -> bool:
        """Parameter servers may be asked for on the pool's own machine."""
        return read_options(options).ps_place == "pool"

    def rendezvous(self, placement: Placement) -> Rendezvous:
        """Opens a store on a port that the system chooses; on one host nobody has to be found."""
        return ClusterRendezvous(placement) if len(placement.hosts) > 1 else NoRendezvous()


class NoRendezvous:
    """See `fdt.runtime.Rendezvous`."""

    def environment(self, rank: int) -> Mapping[str, str]:
        """Returns nothing to add."""
        return {}

    def close(self) -> None:
        """Does nothing."""


class ClusterRendezvous:
    """See `fdt.runtime.Rendezvous`: where the hosts of one job tell each other their ports."""

    def __init__(self, placement: Placement):
        """Opens the store on the pool's address.

        Args:
            placement: Over several hosts.
        """
        members = tuple(Member(place.address, number) for place, number in placement.processes)
        self._store = KeyValueServer(placement.pool.address, {m.address for m in members} | {placement.pool.address})
        self._cluster = Cluster(members, self._store.address)

    def environment(self, rank: int) -> Mapping[str, str]:
        """Returns the same for all: who is there, and where they meet."""
        return self._cluster.environment()

    def close(self) -> None:
        """Frees the port."""
        self._store.close()
