"""How parameters are spread over parameter servers: in whole tensors, and in cut ones where a server would have too much."""

from collections.abc import Sequence

# By how much of its share, and by how many bytes, a server may have more than the others before tensors are cut. A cut tensor
# is put together by each worker in each step, which is a copy.
_UNEVEN, _UNEVEN_BYTES = 0.1, 64 << 10


def deal(sizes: Sequence[int], servers: int) -> list[list[int]]:
    """Deals tensors out, the largest first, each to the server that has least so far.

    Args:
        sizes: Of the tensors, in bytes.
        servers: How many.

    Returns:
        Indices into `sizes`, in order, for each server.
    """
    loads, parts = [0] * servers, [list[int]() for _ in range(servers)]
    for i in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        lightest = loads.index(min(loads))
        loads[lightest] += sizes[i]
        parts[lightest].append(i)
    return [sorted(part) for part in parts]


def loads_of(sizes: Sequence[int], parts: Sequence[Sequence[int]]) -> list[int]:
    """Returns the bytes of each server, given what `deal` gave it."""
    return [sum(sizes[i] for i in part) for part in parts]


def is_even(loads: Sequence[int]) -> bool:
    """Whether servers have so nearly the same that no tensor need be cut."""
    share = sum(loads) / len(loads)
    return max(loads) - share <= max(_UNEVEN * share, _UNEVEN_BYTES)


def fill(loads: Sequence[int], amount: int) -> list[float]:
    """Returns how much each server gets of what can be cut anywhere, so that the fullest has as little as possible.

    Args:
        loads: What each has already, in bytes.
        amount: Bytes to be given out.
    """
    level, ordered = 0.0, sorted(loads)
    for number in range(len(ordered), 0, -1):
        level = (amount + sum(ordered[:number])) / number
        if level >= ordered[number - 1]:
            break
    return [max(0.0, level - load) for load in loads]
