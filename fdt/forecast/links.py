"""What joins the workers: hosts and their links, or one machine."""

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class Network:
    """What joins the hosts.

    Attributes:
        bandwidth: Bytes per second, in each direction of each host's link.
        slots: Workers of each host, which share its link, and have faster ways to each other.
        latency: Seconds from one host to another.
        overlap: What part of an exchange that could be hidden behind computation is hidden, from 0 to 1. Our ring begins when
            all gradients are there, so that it is 0 unless a calibration says otherwise.
        contention: By what factor computation is slower because workers share a machine.
        queueing: Seconds that a request of parameter servers waits in a link which others keep busy.
    """

    bandwidth: float
    latency: float = 0.0
    overlap: float = 0.0
    contention: float = 1.0
    queueing: float = 0.0
    slots: int = 1

    def hosts(self, workers: int) -> int:
        """Returns how many hosts so many workers fill."""
        return -(-workers // self.slots)


@dataclasses.dataclass(frozen=True)
class Hosts:
    """Workers on several hosts; see `Network`.

    Attributes:
        slots: Workers of each host, which fill one after the other.
        cores: How many workers' computations fit beside each other where the hosts are one machine's (a laboratory); None for
            real ones, which do not share.
        rounded: Whether numbers travel in half their bytes (`--wire fp16`).
    """

    bandwidth: float
    latency: float = 0.0
    overlap: float = 0.0
    cores: float | None = None
    queueing: float = 0.0
    rounded: bool = False
    slots: int = 1

    def network(self, mode: str, workers: int) -> Network:
        """Returns what joins them."""
        contention = 1.0 if self.cores is None else max(1.0, workers / self.cores)
        bandwidth = self.bandwidth * 2 if self.rounded else self.bandwidth
        return Network(bandwidth, self.latency, self.overlap, contention, self.queueing, self.slots)


@dataclasses.dataclass(frozen=True)
class Machine:
    """Workers on one machine: they share its memory, and its cores unless each has a GPU.

    Attributes:
        bandwidth: Bytes per second that two ranks exchanged by all-reduce, in each direction.
        contention: For each mode, how much slower a worker computes alone on the machine than was measured, and beside a
            second one.
        shares_cores: Whether computation uses cores.
    """

    bandwidth: float
    contention: dict[str, tuple[float, float]]
    shares_cores: bool = True

    def network(self, mode: str, workers: int) -> Network:
        """Returns what joins them.

        All that ranks exchange goes through one memory. Parameter servers hand their own memory out: nothing is
        transferred, and an update is part of what was measured.
        """
        alone, two = self.contention[mode]
        crowded = max(1.0, workers / 2) if self.shares_cores else 1.0
        contention = alone if workers == 1 else two * crowded
        bandwidth = self.bandwidth * 2 / workers if mode == "sync" else math.inf
        return Network(bandwidth, contention=contention)
