"""Indexes a pool's worker processes by name and by host: there may be thousands, and an event concerns a few."""

from collections.abc import Iterator, MutableMapping, Sequence

from fdt.pool.state.entities import Worker, WorkerState


class WorkerTable(MutableMapping[str, Worker]):
    """Workers by name, in the order in which they were added. Only `ready` and `leave` may change a worker's state to warm or
    leaving.
    """

    def __init__(self) -> None:
        self._workers: dict[str, Worker] = {}
        # Workers by host, and then by mode.
        self._there: dict[str, dict[str, dict[str, Worker]]] = {}
        self._changed: dict[str, None] = {}
        # Starting workers, the earliest first.
        self._starting: dict[str, Worker] = {}

    def __getitem__(self, name: str) -> Worker:
        return self._workers[name]

    def __setitem__(self, name: str, worker: Worker) -> None:
        self._workers[name] = worker
        if worker.state is WorkerState.STARTING:
            self._starting[name] = worker
        self._there.setdefault(worker.host, {}).setdefault(worker.mode, {})[name] = worker

    def __delitem__(self, name: str) -> None:
        worker = self._workers.pop(name)
        there = self._there[worker.host]
        del there[worker.mode][name]
        if not any(there.values()):
            del self._there[worker.host]
        self._changed[worker.host] = None
        self._starting.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._workers)

    def __len__(self) -> int:
        return len(self._workers)

    def come(self, host: str) -> None:
        """Records a new host."""
        self._changed[host] = None

    def ready(self, worker: Worker, time_s: float) -> None:
        """Records that a worker waits for a job."""
        worker.state, worker.since_s = WorkerState.WARM, time_s
        self._starting.pop(worker.name, None)

    def lose(self, host: str) -> set[str]:
        """Deletes the workers of a host that is gone; returns their names."""
        lost = {name for workers in self._there.get(host, {}).values() for name in workers}
        for name in lost:
            del self[name]
        return lost

    def leave(self, worker: Worker, time_s: float) -> None:
        """Records that a worker is to end."""
        worker.state, worker.since_s = WorkerState.LEAVING, time_s
        self._starting.pop(worker.name, None)
        self._changed[worker.host] = None

    def on(self, host: str, mode: str) -> list[Worker]:
        """Returns the workers of a mode on a host."""
        return list(self._there.get(host, {}).get(mode, {}).values())

    def warm(self, host: str, mode: str) -> list[str]:
        """Returns the names of the workers that wait on a host for a job of this mode."""
        return [worker.name for worker in self.on(host, mode) if worker.state is WorkerState.WARM]

    def starting(self) -> Sequence[Worker]:
        """Returns the workers that are not ready yet, the earliest first."""
        return list(self._starting.values())

    def longest_starting(self) -> Worker | None:
        """Returns the worker that has been starting for the longest time; None if no worker is starting."""
        return next(iter(self._starting.values()), None)

    def changed(self) -> list[str]:
        """Returns the hosts that are new, or that workers have left, since the last call."""
        changed, self._changed = list(self._changed), {}
        return changed
