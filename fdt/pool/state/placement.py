"""Which hosts a job's workers go to, and which processes serve there."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from fdt.pool.state.entities import Host, Job
from fdt.pool.state.events import OWN_HOST
from fdt.pool.state.worker_table import WorkerTable

# Hosts, and how many workers of a job each takes.
Places = tuple[tuple[str, int], ...]


def place(free: Mapping[str, int], num_workers: int) -> Places:
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


def busy(jobs: Iterable[Job]) -> Counter[str]:
    """Returns how many workers serve these jobs, by host."""
    found: Counter[str] = Counter()
    for job in jobs:
        found.update(dict(job.places))
    return found


def places(hosts: Iterable[Host], busy: Mapping[str, int], job: Job) -> Places:
    """Returns the hosts that have room for a job now and how many workers each takes; () if they have not.

    Args:
        hosts: In the order in which they are filled.
        busy: How many workers serve jobs, by host; 0 for hosts that are not in it.
        job: Which may need a process on the pool's own machine besides.
    """
    found = place({host.name: host.slots - busy.get(host.name, 0) for host in hosts}, job.num_workers)
    if found and job.needs_pool and found[0][0] != OWN_HOST:
        return ((OWN_HOST, 0), *found)
    return found


def processes(workers: WorkerTable, places: Places, mode: str, number: Callable[[int], int]) -> tuple[str, ...]:
    """Returns the processes that are to serve at these places, by rank; () while some of them are not warm.

    Args:
        workers: The pool's.
        places: Of the job.
        mode: Of the job.
        number: How many processes so many workers take on one host.
    """
    found: list[str] = []
    for host, num_workers in places:
        warm, needed = workers.warm(host, mode), number(num_workers)
        if needed > len(warm):
            return ()
        found += warm[:needed]
    return tuple(found)
