"""Answers the page's requests: files, streams, logs and reports, and one action: cancelling a job."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from fdt.base.printable import LogFilter
from fdt.errors import ProtocolError
from fdt.pool.page.feed import MAX_STREAMS, Feed

_FOLDER = Path(__file__).parent
# The bytes of a log that the page shows; `fdt logs` prints all of it.
_LOG_BYTES = 256 << 10


class PoolActions:
    """The pool's functions that the page calls, besides taking snapshots.

    Attributes:
        cancel: Cancels a job; returns its state.
        logs: Returns the log files of a job's workers, by rank.
    """

    def __init__(self, cancel: Callable[[str], str], logs: Callable[[str], Sequence[Path]]) -> None:
        self.cancel, self.logs = cancel, logs


def application(feed: Feed, actions: PoolActions) -> Starlette:
    """Returns the page's ASGI application, which does not check browsers: `Gate` does that before it."""

    async def page(_: Request) -> Response:
        return FileResponse(_FOLDER / "page.html", headers={"Cache-Control": "no-cache"})

    async def events(request: Request) -> Response:
        if feed.num_streams >= MAX_STREAMS:
            return PlainTextResponse(f"{MAX_STREAMS} pages are open already: close one.\n", 503)
        stream = feed.events(request.query_params.get("job", ""))
        return StreamingResponse(stream, media_type="text/event-stream")

    async def report(request: Request) -> Response:
        name = request.path_params["job"]
        found = await feed.detail(name)
        if found is None:
            return _unknown(name)
        return JSONResponse(found, headers={"Content-Disposition": f'attachment; filename="{name}.json"'})

    async def log(request: Request) -> Response:
        name, rank = request.path_params["job"], request.path_params["rank"]
        try:
            logs = await run_in_threadpool(actions.logs, name)
        except ProtocolError:
            return _unknown(name)
        if rank >= len(logs):
            return PlainTextResponse(f"{name} has no process {rank} (yet).\n", 404)
        return PlainTextResponse(await run_in_threadpool(end_of, logs[rank]))

    async def cancel(request: Request) -> Response:
        name = request.path_params["job"]
        try:
            return JSONResponse({"state": await run_in_threadpool(actions.cancel, name)})
        except ProtocolError:
            return _unknown(name)

    return Starlette(
        routes=[
            Route("/", page),
            Route("/events", events),
            Route("/jobs/{job}/report", report),
            Route("/jobs/{job}/log/{rank:int}", log),
            Route("/jobs/{job}/cancel", cancel, methods=["POST"]),
            Mount("/static", StaticFiles(directory=_FOLDER / "static")),
        ]
    )


def _unknown(job: Any) -> Response:
    return PlainTextResponse("The pool knows no such job.\n", 404)


def end_of(log: Path, limit_bytes: int = _LOG_BYTES) -> str:
    """Returns the end of a log as the page shows it, without colours.

    Args:
        log: The file, which may not exist.
        limit_bytes: The most bytes of it.
    """
    try:
        with open(log, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - limit_bytes))
            content = file.read(limit_bytes)
    except FileNotFoundError:
        return "(this log is not kept any more)\n"
    left_out = f"({size - limit_bytes:,} bytes before this are left out; `fdt logs` prints all)\n"
    return (left_out if size > limit_bytes else "") + LogFilter(colours=False).feed(content, last=True)
