"""Starts a synchronous job as processes, one per rank, each with Horovod's settings.

Ranks find each other over the pool's own channel (`hfdt.bridge`). Their own connections have no authentication, so the operator
has to declare trusted the network that joins ranks on several hosts.
"""

from collections.abc import Mapping

from fdt.base import held, relaxation, rounding
from fdt.errors import UsageError
from fdt.worker.runtime import Launcher, Placement

# The environment variable with the address on which a rank connects to the others. Our patch of Horovod reads it
# (`address.patch` in fdt/base/horovod_patches).
ADDRESS = "HOROVOD_GLOO_ADDRESS"

_LOOPBACK = "127.0.0.1"


class HorovodLauncher(Launcher):
    """Starts one process for each rank."""

    engine = "hfdt.runtime:HorovodEngine"
    # A ring has many connections between many ranks, and NCCL does not use TCP only.
    tunnels = False

    def check(self, options: Mapping[str, str]) -> None:
        """Accepts the options for rounding, relaxation, state and memory; raises UsageError for others."""
        rounding.is_rounded(options)
        relaxation.relaxed(options)
        held.held_as(options)
        held.memory_bytes(options)
        known = (rounding.OPTION, relaxation.OPTION, held.OPTION, held.MEMORY)
        others = [name for name in options if name not in known]
        if others:
            name, value = others[0], options[others[0]]
            raise UsageError(f"--{name} goes with --mode async. Received: --mode sync --{name} {value}")

    def num_processes(self, num_workers: int) -> int:
        """Returns one process per rank."""
        return num_workers

    def needs_pool(self, options: Mapping[str, str]) -> bool:
        """Returns False: only the ranks' own hosts run processes."""
        return False

    def environment(self, placement: Placement, rank: int) -> Mapping[str, str]:
        """Returns Horovod's settings for a rank; other settings come from the operator's environment."""
        place = placement.workers[rank]
        one_host = len(placement.hosts) == 1
        settings = {
            **_numbers(placement, rank),
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            # Which of its buckets are ready at once depends on time; in what order numbers are added up must not.
            "HOROVOD_DISABLE_GROUP_FUSION": "1",
            # Horovod uses this only to tell which ranks share a host, not as an address.
            "HOROVOD_HOSTNAME": place.host or "pool",
            ADDRESS: _LOOPBACK if one_host else place.address,
        }
        if not one_host:
            # NCCL would choose among all interfaces of a host; "=" means this name exactly, not as a prefix.
            settings["NCCL_SOCKET_IFNAME"] = f"={place.interface}"
        return settings


def _numbers(placement: Placement, rank: int) -> dict[str, str]:
    """Returns a rank's numbers: global, local to its host, and cross (among the ranks with its local number)."""
    by_host: dict[str, list[int]] = {}
    for other, place in enumerate(placement.workers):
        by_host.setdefault(place.host, []).append(other)
    local = by_host[placement.workers[rank].host]
    local_rank = local.index(rank)
    cross = [ranks[local_rank] for ranks in by_host.values() if len(ranks) > local_rank]
    numbers = {
        "RANK": rank,
        "SIZE": len(placement.workers),
        "LOCAL_RANK": local_rank,
        "LOCAL_SIZE": len(local),
        "CROSS_RANK": cross.index(rank),
        "CROSS_SIZE": len(cross),
    }
    return {f"HOROVOD_{name}": str(number) for name, number in numbers.items()}
