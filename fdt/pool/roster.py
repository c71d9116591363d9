"""The worker processes of a pool, by name, and by where they are: a pool may have thousands, and an event concerns a few."""

from collections.abc import Iterator, MutableMapping

from fdt.pool.jobs import Worker, WorkerState


class Roster(MutableMapping[str, Worker]):
    """Workers by name, in the order of their coming. One that begins to leave is told of by `leave`."""

    def __init__(self) -> None:
        """Begins empty."""
        self._workers: dict[str, Worker] = {}
        # By host and mode.
        self._there: dict[tuple[str, str], dict[str, Worker]] = {}
        self._changed: dict[str, None] = {}

    def __getitem__(self, name: str) -> Worker:
        return self._workers[name]

    def __setitem__(self, name: str, worker: Worker) -> None:
        self._workers[name] = worker
        self._there.setdefault((worker.host, worker.mode), {})[name] = worker

    def __delitem__(self, name: str) -> None:
        worker = self._workers.pop(name)
        place = (worker.host, worker.mode)
        del self._there[place][name]
        if not self._there[place]:
            del self._there[place]
        self._changed[worker.host] = None

    def __iter__(self) -> Iterator[str]:
        return iter(self._workers)

    def __len__(self) -> int:
        return len(self._workers)

    def come(self, host: str) -> None:
        """Records a host."""
        self._changed[host] = None

    def leave(self, worker: Worker, time_s: float) -> None:
        """Records that a worker is to end."""
        worker.state, worker.since_s = WorkerState.LEAVING, time_s
        self._changed[worker.host] = None

    def on(self, host: str, mode: str) -> list[Worker]:
        """Returns those of a mode on a host."""
        return list(self._there.get((host, mode), {}).values())

    def warm(self, host: str, mode: str) -> list[str]:
        """Returns the names of those that wait there for a job of this mode."""
        return [worker.name for worker in self.on(host, mode) if worker.state is WorkerState.WARM]

    def changed(self) -> list[str]:
        """Returns the hosts on which fewer stay than when this was last asked, or which are new."""
        changed, self._changed = list(self._changed), {}
        return changed
