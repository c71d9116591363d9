"""Starts an asynchronous job as processes, one per host. On one host it opens no port.

On several hosts every process runs a `tf.distribute.Server`, which listens on all interfaces and authenticates no client. So
each process has a network namespace of its own, and tunnels join those of one job (`fdt.worker.tunnel`).
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
        """Reads the options as the job's process does; raises UsageError if one is wrong."""
        read_options(options)

    def num_processes(self, num_workers: int) -> int:
        """Returns 1: the workers and parameter servers of a host share one process."""
        return 1

    def needs_pool(self, options: Mapping[str, str]) -> bool:
        """Whether `--ps-place pool` puts the parameter servers on the pool's own machine."""
        return read_options(options).ps_place == "pool"

    def environment(self, placement: Placement, rank: int) -> Mapping[str, str]:
        """Returns the list of all hosts, the same for every process; nothing for a job on one host."""
        if len(placement.hosts) == 1:
            return {}
        members = tuple(Member(place.address, number) for place, number in placement.processes)
        return Cluster(members, placement.tunnelled).environment()
