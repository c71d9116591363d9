"""Sends server-sent events to browsers: one stream for each open page, with only what has changed.

A snapshot of the pool is taken once a second for all streams, and only while a stream is open. Nothing is queued for a browser:
a slow browser skips snapshots, and gets the difference between the last one that it took and the newest.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

from fdt.pool import view
from fdt.pool.observations import JobCurves
from fdt.pool.snapshot import Snapshot

LOOK_S = 1.0
# After this many snapshots without a change a comment is sent, which fails if the browser was closed.
_SILENT_LOOKS = 15
# The most streams at once.
MAX_STREAMS = 32


class Feed:
    """Snapshots of one pool. Its methods are called in one event loop."""

    def __init__(
        self, snapshot: Callable[[], Snapshot], curves: Callable[[str], JobCurves], look_s: float = LOOK_S
    ) -> None:
        """
        Args:
            snapshot: Returns a snapshot of the pool; called in a thread, since it may block.
            curves: Returns a job's curves.
            look_s: Seconds between two snapshots.
        """
        self._snapshot, self._curves, self._look_s = snapshot, curves, look_s
        self._taken_s = float("-inf")
        self._lock = asyncio.Lock()
        self._picture: Snapshot = Snapshot([], [])
        self._tables: view.Tables = {}
        # When the snapshot was taken, since the epoch.
        self._time_s = 0.0
        self._closed = False
        self.num_streams = 0

    def close(self) -> None:
        """Ends all streams, within a second; called from any thread."""
        self._closed = True

    async def picture(self) -> tuple[Snapshot, view.Tables]:
        """Returns the newest snapshot, taken within the last second, and its tables."""
        async with self._lock:
            if time.monotonic() - self._taken_s >= self._look_s:
                # The interval runs from start to start, so that streams that wake together share a snapshot.
                self._taken_s = time.monotonic()
                self._picture = await asyncio.to_thread(self._snapshot)
                shown = view.overview(self._picture, time.time())
                self._tables, self._time_s = view.tables(shown), shown["time_s"]
            return self._picture, self._tables

    async def detail(self, name: str) -> dict[str, Any] | None:
        """Returns all that is known of one job; None if no job has this name."""
        picture, _ = await self.picture()
        job = next((job for job in picture.jobs if job.name == name), None)
        return None if job is None else view.detail(job, self._curves(name))

    async def events(self, job: str) -> AsyncGenerator[bytes, None]:
        """Yields server-sent events until the browser disconnects: `pool` (see `view.changes`) and `job` (see `view.detail`).

        Args:
            job: The job whose details are sent; "" for none.
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
    """Returns a server-sent event with a value as JSON, without line breaks."""
    return f"event: {kind}\ndata: {json.dumps(value, separators=(',', ':'), allow_nan=False)}\n\n".encode()
