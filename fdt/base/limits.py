"""Holds every bound of a pool's control process, per client and in total.

`each` means per client: a person, where the pool has tokens of persons; else a connection, since on loopback all have the same
address. An error that refuses a client names the bound.
"""

import dataclasses
import resource
import sys
from collections.abc import Sequence

from fdt.errors import CapacityError, UsageError


@dataclasses.dataclass(frozen=True)
class Limits:
    """Every bound, in the unit of its name's suffix, or a number. Tests pass small ones."""

    # ---- connections ---------------------------------------------------------------------------------------------
    # More than the hosts and clients of a large pool need, and few enough that their buffers fit into memory.
    connections: int = 4096
    # Descriptors reserved for logs, pipes to workers and blobs. A pool uses some 20, and one per worker.
    kept_descriptors: int = 256
    # TCP and TLS handshake and HTTP/2's first frame: three round trips, of up to a second each.
    handshake_s: float = 5.0
    # How long a connection may have no call. gRPC reopens a closed connection by itself.
    idle_s: float = 60.0
    # HTTP/2 streams of one connection. gRPC refuses more without a reason, and counts streams that are ending. So this is more
    # than twice the calls that our rate limits allow a connection, which do give a reason.
    streams_each: int = 256
    # A token, a user agent and a deadline take less than 500.
    metadata_bytes: int = 8 << 10
    # gRPC's own default; bulk data stay below it, since they are sent in chunks.
    message_bytes: int = 4 << 20

    # Of browsers at the page, which open up to six each, and of who asks for figures, each of which takes a thread.
    page_connections: int = 64
    metrics_connections: int = 8
    # Until a request has come there.
    silent_http_s: float = 5.0

    # ---- calls ---------------------------------------------------------------------------------------------------
    # Between the beginning of a call and its first message; clients send both at once.
    first_message_s: float = 5.0
    # Calls whose first message has not come. If there are more, the oldest is ended: normally it takes one round trip.
    silent_calls: int = 64
    # Open streams of jobs: queued, running, and just being refused.
    jobs: int = 256
    jobs_each: int = 16
    # A script sends two blobs at once, and pieces of a stream; a person may run several.
    uploads: int = 64
    uploads_each: int = 16
    # A joined host fetches one blob at a time.
    downloads: int = 128
    downloads_each: int = 16
    # Answered in milliseconds; so many at a time are thousands a second.
    short_calls: int = 128
    short_calls_each: int = 64
    # How long a stream of a blob or a log waits for a reader that reads nothing.
    unread_s: float = 30.0

    # ---- hosts ---------------------------------------------------------------------------------------------------
    # Hosts that may have joined at once, and workers that they may offer in total. Each host takes a connection and two threads
    # of the control process (`benchmarks/results/simulated_hosts.md`); more hosts need more `connections`, too.
    hosts: int = 64
    joined_workers: int = 512

    # ---- jobs ----------------------------------------------------------------------------------------------------
    queued_jobs: int = 64
    # Jobs that have ended and are still listed.
    remembered_jobs: int = 100
    # The first message of a job, with its names and options; a long path and all options take 6 KB.
    opening_bytes: int = 64 << 10
    # Linux's longest path.
    script_bytes: int = 4096
    # Names of modes, versions, workers, hosts.
    name_bytes: int = 256
    # Of a script's name or a reason in the list of jobs, so that a list with a job for each stream above fits into a message.
    listed_bytes: int = 1024
    # Of a worker's error message; the longest of TensorFlow's seen so far had 9 KB.
    failure_bytes: int = 64 << 10
    # Instructions that are kept for a job that waits for workers; beyond this its stream is not read until it has workers. A
    # program and arrays are sent as blobs, whose names take 100 bytes.
    early_bytes: int = 1 << 20
    # Instructions that a worker has not taken yet; beyond this the client's stream is not read.
    untaken_bytes: int = 16 << 20
    # Messages that a client has not read yet; beyond this its job ends. 15 outputs of steps of the largest message size.
    unread_bytes: int = 64 << 20
    unread_bytes_in_all: int = 256 << 20
    # Drains, programs, states and pieces of a stream that may be under way at once; our client has a hundred at most.
    pending: int = 4096
    # Blobs that one job uses.
    job_blobs: int = 65_536
    # Snapshots of one session: two for each of its programs.
    session_blobs: int = 4096
    # Of a worker's account of a job, and of its newest usage samples; a sample has some 200 bytes.
    account_bytes: int = 64 << 10

    # ---- the store -----------------------------------------------------------------------------------------------
    # Reading a directory with this many takes 50 ms.
    blobs: int = 65_536
    # Names in one query for missing blobs; each is looked up in the file system.
    asked_blobs: int = 8192
    # Room is reserved for an upload as its bytes come, in steps of this size.
    upload_step_bytes: int = 16 << 20
    # The least rate of an upload, slower than a modem's: a slower one blocks room and a stream.
    upload_bytes_s: int = 4096
    # The share of the disk's free space that unfinished uploads of one client may take.
    upload_share: float = 0.75
    # Kept free on the disk, at most a twentieth of it, for logs and the machine's other users.
    kept_disk_bytes: int = 1 << 30


DEFAULT = Limits()
_NAMES = tuple(field.name for field in dataclasses.fields(Limits))
# Limits of a store with a single user: only the disk bounds it.
OWN_STORE = Limits(kept_disk_bytes=0, blobs=sys.maxsize)


def changed(limits: Limits, asked: Sequence[str]) -> Limits:
    """Returns the bounds with an operator's changes.

    Args:
        limits: The current bounds.
        asked: Changes, NAME=NUMBER each.

    Raises:
        UsageError: A name is unknown, or a value is no number above 0.
    """
    for each in asked:
        name, _, text = each.partition("=")
        if name not in _NAMES:
            raise UsageError(f"Expected --limit NAME=NUMBER with one of: {', '.join(_NAMES)}. Received: {each}")
        kind = type(getattr(limits, name))
        try:
            number = kind(text)
        except ValueError:
            number = 0
        if not 0 < number < float("inf"):
            raise UsageError(f"Expected {'a whole' if kind is int else 'a'} number above 0. Received: --limit {each}")
        limits = dataclasses.replace(limits, **{name: number})
    return limits


def open_descriptors(limits: Limits) -> int:
    """Raises this process's soft limit of descriptors to the hard one.

    Returns:
        How many connections the public port may hold.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return max(1, min(limits.connections, hard - limits.kept_descriptors))


def check_name(what: str, text: str, bound_bytes: int) -> None:
    """Refuses a received name that is too long.

    Raises:
        CapacityError: The name is too long.
    """
    size = len(text.encode())
    if size > bound_bytes:
        raise CapacityError(f"{what} may have {bound_bytes:,} bytes. Received: {size:,} bytes, {cut(text, 40)!r}")


def cut(text: str, bound_bytes: int) -> str:
    """Returns the beginning of a text, of at most `bound_bytes` bytes."""
    raw = text.encode()
    return text if len(raw) <= bound_bytes else raw[: bound_bytes - 3].decode(errors="ignore") + "…"
