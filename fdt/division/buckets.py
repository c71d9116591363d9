"""Cuts gradients into buckets: each is exchanged once it is computed, while back-propagation computes the next ones."""

from collections.abc import Sequence

# Nothing is left to compute while the last bucket travels, so it is small: no more than this, or one gradient. A message of a
# quarter of a megabyte takes 2 ms at 1 Gbit/s, about as long as workers need to agree on it.
_LAST_BYTES = 1 << 18
# A bucket that is fuller than this part of its size does not take a gradient that exceeds it; a bias goes with its weights.
_FULL = 1 / 4
# Of a bucket's size that the first one has; each has twice the one before. The link is idle until the first is full, and while
# a bucket travels more than its size may be computed, the more the slower the link is.
_FIRST = 1 / 4


def buckets(num_bytes: Sequence[int], bucket_bytes: int | None) -> list[slice]:
    """Returns which gradients are exchanged together.

    Args:
        num_bytes: Those of each gradient, in the order in which they are computed.
        bucket_bytes: Those of the largest bucket, unless a gradient has more; None if all gradients are exchanged together.
    """
    everything = slice(0, len(num_bytes))
    if bucket_bytes is None:
        return [everything]
    found: list[slice] = []
    start, size, limit = 0, 0, _FIRST * bucket_bytes
    for place, more in enumerate(num_bytes):
        if size + more > limit and size > _FULL * limit:
            found.append(slice(start, place))
            start, size, limit = place, 0, min(2 * limit, bucket_bytes)
        size += more
    last = _last(num_bytes, start)
    return [*found, *([slice(start, last)] if start < last else []), slice(last, len(num_bytes))]


def _last(num_bytes: Sequence[int], start: int) -> int:
    """Returns where the last bucket begins, among gradients from `start` on: at `start` where it is not worth two messages."""
    last, size = len(num_bytes), 0
    while last > start and size + num_bytes[last - 1] <= _LAST_BYTES:
        last -= 1
        size += num_bytes[last]
    if last == len(num_bytes):
        last -= 1
    return last if sum(num_bytes[start:last]) > _LAST_BYTES else start
