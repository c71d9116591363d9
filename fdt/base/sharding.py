"""Spreads parameters over parameter servers: whole tensors, or cut ones if a server would have too much."""

from collections.abc import Sequence

# By what part of its share, or how many bytes, a server may exceed its share before tensors are cut. Each worker has to join a
# cut tensor in each step, which is a copy.
_UNEVEN, _UNEVEN_BYTES = 0.1, 64 << 10
# The least bytes of a server's part of a table: each part has messages of its own for row numbers, rows and gradients. Where
# each step writes every row (True), parts share this work; where it writes the batch's rows, they share memory alone.
LEAST_PART_BYTES = {True: 8 << 20, False: 64 << 20}


def deal(sizes: Sequence[int], servers: int) -> list[list[int]]:
    """Assigns tensors to servers, the largest first, each to the server with the least bytes so far.

    Args:
        sizes: The tensors' sizes in bytes.
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
    """Returns the bytes of each server, given the result of `deal`."""
    return [sum(sizes[i] for i in part) for part in parts]


def is_even(loads: Sequence[int]) -> bool:
    """Whether servers' loads are even enough that no tensor need be cut."""
    share = sum(loads) / len(loads)
    return max(loads) - share <= max(_UNEVEN * share, _UNEVEN_BYTES)


def is_cut_by_rows(num_bytes: int, least_part: int, servers: int) -> bool:
    """Whether every server holds some of a table's rows.

    Args:
        num_bytes: The table's size.
        least_part: The least bytes of a part.
        servers: How many.
    """
    return servers > 1 and num_bytes >= servers * least_part


def fill(loads: Sequence[int], amount: int) -> list[float]:
    """Distributes bytes that can be cut anywhere so that the largest load is as small as possible; returns each server's.

    Args:
        loads: The servers' loads so far, in bytes.
        amount: The bytes to distribute.
    """
    level, ordered = 0.0, sorted(loads)
    for number in range(len(ordered), 0, -1):
        level = (amount + sum(ordered[:number])) / number
        if level >= ordered[number - 1]:
            break
    return [max(0.0, level - load) for load in loads]
