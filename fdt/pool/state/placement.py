"""Chooses the hosts of a job's workers, and the processes that serve there."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from fdt.pool.state.entities import Host, Job
from fdt.pool.state.events import OWN_HOST
from fdt.pool.state.worker_table import WorkerTable

# Hosts, and how many workers of a job each takes.
Places = tuple[tuple[str, int], ...]


def place(free: Mapping[str, int], num_workers: int) -> Places:
    """Returns hosts and how many workers each takes; () if there is no room for all workers.

    Args:
        free: For each host, in the order in which they are filled, how many more workers may serve there.
        num_workers: The job's number of workers, at least 1.
    """
    # A job that fits on one host needs no network.
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


def busy(jobs: Iterable[Job]) -> Counter[str]:
    """Returns how many workers serve these jobs, by host."""
    found: Counter[str] = Counter()
    for job in jobs:
        found.update(dict(job.places))
    return found


def places(hosts: Iterable[Host], busy: Mapping[str, int], job: Job) -> Places:
    """Returns the hosts that have room for a job now and how many workers each takes; () if there is no room.

    Args:
        hosts: In the order in which they are filled.
        busy: How many workers serve jobs, by host; 0 for hosts that are not in it.
        job: The job; it may also need a process on the pool's own machine.
    """
    found = place({host.name: host.slots - busy.get(host.name, 0) for host in hosts}, job.num_workers)
    if found and job.needs_pool and found[0][0] != OWN_HOST:
        return ((OWN_HOST, 0), *found)
    return found


def processes(workers: WorkerTable, places: Places, mode: str, number: Callable[[int], int]) -> tuple[str, ...]:
    """Returns the processes that are to serve at these places, by rank; () while too few are warm.

    Args:
        workers: The pool's.
        places: The job's places.
        mode: The job's mode.
        number: Returns the number of processes for a number of workers on one host.
    """
    found: list[str] = []
    for host, num_workers in places:
        warm, needed = workers.warm(host, mode), number(num_workers)
        if needed > len(warm):
            return ()
        found += warm[:needed]
    return tuple(found)
