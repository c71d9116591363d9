"""Cuts gradients into buckets: each is exchanged once it is computed, while back-propagation computes the next ones."""

from collections.abc import Sequence

# Nothing is left to compute while the last bucket travels, so it is small. A message of a quarter of a megabyte takes 2 ms at
# 1 Gbit/s, about as long as workers need to agree on it.
_LAST_BYTES = 1 << 18


def buckets(num_bytes: Sequence[int], most_bytes: int | None) -> list[slice]:
    """Returns which gradients are exchanged together.

    Args:
        num_bytes: Those of each gradient, in the order in which they are computed.
        most_bytes: Those of a bucket, unless it is a single gradient; None if all gradients are exchanged together.
    """
    if most_bytes is None:
        return [slice(0, len(num_bytes))]
    found: list[slice] = []
    end, size, room = len(num_bytes), 0, min(_LAST_BYTES, most_bytes)
    for start in reversed(range(len(num_bytes))):
        if start + 1 < end and size + num_bytes[start] > room:
            found.insert(0, slice(start + 1, end))
            end, size, room = start + 1, 0, most_bytes
        size += num_bytes[start]
    return [slice(0, end), *found]
