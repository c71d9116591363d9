"""What goes to browsers, as server-sent events: one stream a page, each told what it does not have.

A picture of the pool is taken once a second, for all streams, and only while there is one. Nothing is queued for a browser: one
that is slow skips pictures, and is told the difference between the last that it took and the newest.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from fdt.pool import view
from fdt.pool.observations import JobCurves
from fdt.pool.snapshot import Snapshot

LOOK_S = 1.0
# Without news: a browser that is gone is noticed when something is sent.
_SILENT_LOOKS = 15
# Streams at once.
MAX_STREAMS = 32


class Feed:
    """Pictures of one pool. Its methods are called in one event loop."""

    def __init__(
        self, snapshot: Callable[[], Snapshot], curves: Callable[[str], JobCurves], look_s: float = LOOK_S
    ) -> None:
        """
        Args:
            snapshot: Returns what the pool knows; called in a thread, for it may wait.
            curves: Returns what is known of a job over time.
            look_s: Between two pictures.
        """
        self._snapshot, self._curves, self._look_s = snapshot, curves, look_s
        self._taken_s = float("-inf")
        self._lock = asyncio.Lock()
        self._picture: Snapshot = Snapshot([], [])
        self._tables: view.Tables = {}
        # When the picture was taken, since the epoch.
        self._time_s = 0.0
        self._closed = False
        self.num_streams = 0

    def close(self) -> None:
        """Ends all streams, within a second; called from any thread."""
        self._closed = True

    async def picture(self) -> tuple[Snapshot, view.Tables]:
        """Returns the newest picture, taken within the last second."""
        async with self._lock:
            if time.monotonic() - self._taken_s >= self._look_s:
                # From one beginning to the next, so that streams that wake together share one.
                self._taken_s = time.monotonic()
                self._picture = await asyncio.to_thread(self._snapshot)
                shown = view.overview(self._picture, time.time())
                self._tables, self._time_s = view.tables(shown), shown["time_s"]
            return self._picture, self._tables

    async def detail(self, name: str) -> dict[str, Any] | None:
        """Returns all that is known of one job; None if there is none of this name."""
        picture, _ = await self.picture()
        job = next((job for job in picture.jobs if job.name == name), None)
        return None if job is None else view.detail(job, self._curves(name))

    async def events(self, job: str) -> AsyncIterator[bytes]:
        """Yields server-sent events until the browser goes: `pool` (see `view.changes`) and `job` (see `view.detail`).

        Args:
            job: Of which all is told; "" for none.
        """
        self.num_streams += 1
        try:
            sent: view.Tables = {}
            told: dict[str, Any] | None = None
            silent = 0
            while not self._closed:
                _, tables = await self.picture()
                pieces = []
                if (changes := view.changes(sent, tables)) or not sent:
                    pieces.append(event("pool", {**changes, "time_s": self._time_s}))
                    sent = tables
                if job and (found := await self.detail(job)) != told:
                    pieces.append(event("job", found))
                    told = found
                silent = 0 if pieces else silent + 1
                if silent >= _SILENT_LOOKS:
                    pieces, silent = [b": nothing new\n\n"], 0
                for piece in pieces:
                    yield piece
                await asyncio.sleep(self._look_s)
        finally:
            self.num_streams -= 1


def event(kind: str, value: object) -> bytes:
    """Returns a server-sent event with a value as JSON, which has no line end in it."""
    return f"event: {kind}\ndata: {json.dumps(value, separators=(',', ':'), allow_nan=False)}\n\n".encode()
