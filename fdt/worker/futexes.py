"""Asks the kernel for futex slots, so that it finds fast whom to wake among thousands of threads (Linux 6.16 and later).

Since then a process has a table of its own for who waits for which lock, with as many slots as it has use for with a thread a
core: 16 on two. A pool has two threads for each worker on another host, so with 500 hosts of 8 workers whoever wakes one looks
at 600 that sleep: 200 µs for each, nine tenths of the pool's time. A process may ask for more slots, prctl(2), PR_FUTEX_HASH.
"""

import ctypes

_PR_FUTEX_HASH, _SET_SLOTS, _GET_SLOTS = 78, 1, 2
# 64 bytes each.
_MOST = 1 << 16


def make_room(num_threads: int) -> bool:
    """Gives this process a slot for each of so many threads; returns whether it has them now.

    A process that has more keeps them; an older kernel has one table for all, which is large enough.
    """
    slots = min(_MOST, 1 << max(4, num_threads - 1).bit_length())
    return num_slots() >= slots or ctypes.CDLL(None).prctl(_PR_FUTEX_HASH, _SET_SLOTS, slots, 0) == 0


def num_slots() -> int:
    """Returns how many slots this process has; 0 or less if it has none of its own."""
    return int(ctypes.CDLL(None).prctl(_PR_FUTEX_HASH, _GET_SLOTS))
