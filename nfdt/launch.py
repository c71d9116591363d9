"""How an asynchronous job becomes processes: one a host. On one host it opens no port.

Over several hosts every process is a `tf.distribute.Server`, which listens on all interfaces of its network and authenticates
nobody; so that network is the process's own, and tunnels join those of one job (`fdt.worker.tunnel`).
"""

from collections.abc import Mapping

from fdt.worker.runtime import Placement
from nfdt.cluster import Cluster, Member
from nfdt.options import read_options


class ParameterServerLauncher:
    """See `fdt.worker.runtime.Launcher`."""

    engine = "nfdt.runtime:ParameterServerEngine"
    tunnels = True

    def check(self, options: Mapping[str, str]) -> None:
        """Reads the options, as the job's process will."""
        read_options(options)

    def num_processes(self, num_workers: int) -> int:
        """Workers and parameter servers of a host are devices of one process."""
        return 1

    def needs_pool(self, options: Mapping[str, str]) -> bool:
        """Parameter servers may be asked for on the pool's own machine."""
        return read_options(options).ps_place == "pool"

    def environment(self, placement: Placement, rank: int) -> Mapping[str, str]:
        """Returns the same for all: who is there; on one host nobody has to be found."""
        if len(placement.hosts) == 1:
            return {}
        members = tuple(Member(place.address, number) for place, number in placement.processes)
        return Cluster(members, placement.tunnelled).environment()
