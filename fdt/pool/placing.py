"""Which hosts a job's workers go to."""

from collections.abc import Mapping


def place(free: Mapping[str, int], num_workers: int) -> tuple[tuple[str, int], ...]:
    """Returns hosts and how many workers each takes; () if there is no room for all.

    Args:
        free: For each host, in the order in which they are filled, how many workers more may serve there.
        num_workers: Of the job, at least 1.
    """
    # What fits on one host needs no network.
    whole = next((host for host, slots in free.items() if slots >= num_workers), None)
    if whole is not None:
        return ((whole, num_workers),)
    places, left = [], num_workers
    for host, slots in free.items():
        taken = min(slots, left)
        if taken:
            places.append((host, taken))
            left -= taken
    return () if left else tuple(places)
