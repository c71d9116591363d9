"""Describes what connects the workers: hosts and their links, or one machine."""

import dataclasses
import math

# How much of what could be hidden our ring hides between hosts, unless a calibration finds another value. Two hosts whose cores
# are busy with a dense network hid 0.44, layers of an emulated accelerator, which leave them free, 0.94
# (benchmarks/results/overlap.md). What Horovod has published of 512 GPUs is within two points of this value
# (benchmarks/results/cluster_512.md).
OVERLAP = 0.45


@dataclasses.dataclass(frozen=True)
class Network:
    """The links that connect the hosts.

    Attributes:
        bandwidth: Bytes per second, in each direction of each host's link.
        slots: Workers of each host, which share its link and have faster connections to each other.
        latency: Seconds from one host to another.
        overlap: The fraction of an exchange that is hidden behind computation, of what could be; see `OVERLAP`.
        contention: The factor by which computation is slower because workers share a machine.
        queueing: Seconds that a request to a parameter server waits in a link that other workers keep busy.
    """

    bandwidth: float
    latency: float = 0.0
    overlap: float = 0.0
    contention: float = 1.0
    queueing: float = 0.0
    slots: int = 1

    def hosts(self, workers: int) -> int:
        """Returns how many hosts this number of workers fills."""
        return -(-workers // self.slots)


@dataclasses.dataclass(frozen=True)
class Hosts:
    """Workers on several hosts; see `Network`.

    Attributes:
        slots: Workers of each host; hosts are filled one after the other.
        cores: If one machine simulates the hosts (a laboratory), how many workers can compute at once without slowing down;
            None for real hosts.
        rounded: Whether numbers are sent in half their bytes (`--wire fp16`).
    """

    bandwidth: float
    latency: float = 0.0
    overlap: float = 0.0
    cores: float | None = None
    queueing: float = 0.0
    rounded: bool = False
    slots: int = 1

    def network(self, mode: str, workers: int) -> Network:
        """Returns the network that connects this number of workers."""
        contention = 1.0 if self.cores is None else max(1.0, workers / self.cores)
        bandwidth = self.bandwidth * 2 if self.rounded else self.bandwidth
        return Network(bandwidth, self.latency, self.overlap, contention, self.queueing, self.slots)


@dataclasses.dataclass(frozen=True)
class Machine:
    """Workers on one machine: they share its memory, and its cores unless each has a GPU.

    Attributes:
        bandwidth: Bytes per second in each direction, measured with an all-reduce of two ranks.
        contention: For each mode, the factor by which a worker computes more slowly than was measured: alone on the machine,
            and beside a second worker.
        shares_cores: Whether computation uses cores.
    """

    bandwidth: float
    contention: dict[str, tuple[float, float]]
    shares_cores: bool = True

    def network(self, mode: str, workers: int) -> Network:
        """Returns the network that connects this number of workers.

        All exchanges of ranks go through one memory. Parameter servers pass references to their own memory: nothing is
        transferred, and the measured times contain the update.
        """
        alone, two = self.contention[mode]
        crowded = max(1.0, workers / 2) if self.shares_cores else 1.0
        contention = alone if workers == 1 else two * crowded
        bandwidth = self.bandwidth * 2 / workers if mode == "sync" else math.inf
        return Network(bandwidth, contention=contention)
