"""Asks the kernel for futex slots, so that it quickly finds the thread to wake among thousands (Linux 6.16 and later).

Since then each process has a table of its own of the threads that wait for locks, with enough slots for one thread a core: 16
slots on two cores. A pool has two threads for each worker on another host, so with 500 hosts of 8 workers each wake-up searches
600 sleeping threads: 200 µs each, nine tenths of the pool's time. A process may ask for more slots: prctl(2), PR_FUTEX_HASH.
"""

import ctypes

_PR_FUTEX_HASH, _SET_SLOTS, _GET_SLOTS = 78, 1, 2
# 64 bytes each.
_MOST = 1 << 16


def make_room(num_threads: int) -> bool:
    """Gives this process a slot for each of `num_threads` threads; returns whether it has them now.

    A process with more slots keeps them; an older kernel has one table for all processes, which is large enough.
    """
    slots = min(_MOST, 1 << max(4, num_threads - 1).bit_length())
    return num_slots() >= slots or ctypes.CDLL(None).prctl(_PR_FUTEX_HASH, _SET_SLOTS, slots, 0) == 0


def num_slots() -> int:
    """Returns the number of this process's own slots; 0 or less if it has none."""
    return int(ctypes.CDLL(None).prctl(_PR_FUTEX_HASH, _GET_SLOTS))
