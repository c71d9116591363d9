"""A job's meeting place without a pool between its processes."""

from fdt.errors import WorkerError
from fdt.worker.rendezvous import RendezvousTable


class OwnMeetingPlace:
    """See `fdt.worker.runtime.MeetingPlace`."""

    def __init__(self) -> None:
        self._places = RendezvousTable()
        self._key = self._places.open("job-1", 2)

    def put(self, key: str, value: bytes) -> None:
        self._places.put(self._key, key, value)

    def get(self, key: str) -> bytes | None:
        return self._places.get(self._key, key)

    def wait(self, key: str, limit_s: float) -> bytes:
        value = self.get(key)
        if value is None:
            raise WorkerError(f"nobody said {key}")
        return value
