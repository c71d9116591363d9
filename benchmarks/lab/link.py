"""What a link between a host and the switch can carry, and how the kernel is told. Nothing here is run."""

import dataclasses
import math

# An Ethernet frame as the kernel counts it: 1500 bytes and a header of 14. Of these TCP leaves a program 1448.
FRAME_BYTES = 1514
PAYLOAD_BYTES = 1448

# A timer that wakes up this late loses nothing: the bucket has filled meanwhile, and is not yet full.
_BURST_S = 0.002
_MIN_BURST_FRAMES = 4
# What a port of a switch holds when several hosts send to one; what comes on top is lost, and TCP sends it again.
_QUEUE_S = 0.05
_MIN_QUEUE_FRAMES = 64
# As many frames as TCP hands over as one at most (64 kB).
_MAX_SEGMENTS = 43


@dataclasses.dataclass(frozen=True)
class Link:
    """One host's cable to the switch.

    Attributes:
        bandwidth_bps: Bits a second in each direction, both at once; counted in frames, headers included.
        latency_s: That a frame takes more from one host to another, one way. Needs `netem` in the kernel.
    """

    bandwidth_bps: float
    latency_s: float = 0.0

    @property
    def burst_bytes(self) -> int:
        """The bucket of the token bucket filter: what may pass at once after a pause.

        Small, because after each pause of a link a bucket is free: a ring of 4 hosts pauses 6 times a step.
        """
        return max(int(self.bandwidth_bps / 8 * _BURST_S), _MIN_BURST_FRAMES * FRAME_BYTES)

    @property
    def queue_bytes(self) -> int:
        """What waits at most on one side of the link."""
        return max(int(self.bandwidth_bps / 8 * (_QUEUE_S + self.latency_s)), _MIN_QUEUE_FRAMES * FRAME_BYTES)

    @property
    def segments(self) -> int:
        """How many frames TCP may hand over as one: half a bucket, since the filter takes apart what is larger than that."""
        return max(1, min(_MAX_SEGMENTS, self.burst_bytes // FRAME_BYTES // 2))

    @property
    def queueing_s(self) -> float:
        """How long a frame waits on average at a side of the link that is busy: TCP fills the queue and lets it run empty."""
        return self.queue_bytes * 8 / self.bandwidth_bps / 2

    def payload_bytes_per_s(self) -> float:
        """Returns what TCP can carry over the link, headers taken off: 0.956 of the bandwidth."""
        return self.bandwidth_bps / 8 * PAYLOAD_BYTES / FRAME_BYTES

    def filters(self, delayed: bool) -> list[list[str]]:
        """Returns what follows `tc qdisc add dev DEVICE` on one side of the link, one list a command.

        Args:
            delayed: Whether this side adds the latency.
        """
        tbf = [
            "tbf",
            "rate",
            f"{self.bandwidth_bps:.0f}bit",
            "burst",
            f"{self.burst_bytes}",
            "limit",
            f"{self.queue_bytes}",
        ]
        if not (delayed and self.latency_s):
            return [["root", *tbf]]
        # `limit` counts frames; all that are under way have to find room.
        under_way = math.ceil(self.bandwidth_bps / 8 * self.latency_s / FRAME_BYTES) + 1000
        delay = ["netem", "delay", f"{self.latency_s * 1e6:.0f}us", "limit", f"{under_way}"]
        return [["root", "handle", "1:", *delay], ["parent", "1:1", "handle", "10:", *tbf]]
