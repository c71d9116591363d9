"""How a synchronous job becomes processes: one a rank, each with Horovod's settings.

Ranks find each other over the pool's own channel (`hfdt.bridge`). What they then say to each other has no authentication:
hence the operator's word for a network that joins ranks on several hosts.
"""

from collections.abc import Mapping

from fdt.base import relaxation, rounding
from fdt.errors import UsageError
from fdt.worker.runtime import Placement

# The variable that tells a rank on which of its host's addresses to meet the others.
ADDRESS = "FDT_GLOO_ADDRESS"

_LOOPBACK = "127.0.0.1"
_LOOPBACK_INTERFACE = "lo"


class HorovodLauncher:
    """See `fdt.worker.runtime.Launcher`."""

    engine = "hfdt.runtime:HorovodEngine"
    # A ring is many connections of many ranks, and NCCL's are not TCP alone.
    tunnels = False

    def check(self, options: Mapping[str, str]) -> None:
        """Knows how gradients travel, and what may be inexact."""
        rounding.is_rounded(options)
        relaxation.relaxed(options)
        others = [name for name in options if name not in (rounding.OPTION, relaxation.OPTION)]
        if others:
            name, value = others[0], options[others[0]]
            raise UsageError(f"--{name} goes with --mode async. Received: --mode sync --{name} {value}")

    def num_processes(self, num_workers: int) -> int:
        """A process a rank."""
        return num_workers

    def needs_pool(self, options: Mapping[str, str]) -> bool:
        """Ranks are all there is."""
        return False

    def environment(self, placement: Placement, rank: int) -> Mapping[str, str]:
        """Returns Horovod's settings for a rank; what it is not told here it takes from the operator's environment."""
        place = placement.workers[rank]
        one_host = len(placement.hosts) == 1
        interface, address = (_LOOPBACK_INTERFACE, _LOOPBACK) if one_host else (place.interface, place.address)
        settings = {
            **_numbers(placement, rank),
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            # To Horovod a name under which the ranks of one host find each other, and no address.
            "HOROVOD_HOSTNAME": place.host or "pool",
            # Horovod heeds the first for some of its connections only; see `hfdt.address`.
            "HOROVOD_GLOO_IFACE": interface,
            ADDRESS: address,
        }
        if not one_host:
            # NCCL would choose among all interfaces of a host; "=": this one, not all whose names begin like it.
            settings["NCCL_SOCKET_IFNAME"] = f"={interface}"
        return settings


def _numbers(placement: Placement, rank: int) -> dict[str, str]:
    """Returns a rank's numbers: among all, among those of its host, and among those with its number on other hosts."""
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
