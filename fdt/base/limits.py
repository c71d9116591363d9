"""Every bound of a pool's control process, for each client and in all.

`each` means one connection, for that is what a client is to the pool: on loopback all have the same address. Whoever is
refused is told the bound.
"""

import dataclasses
import resource
import sys
from collections.abc import Sequence

from fdt.errors import CapacityError, UsageError


@dataclasses.dataclass(frozen=True)
class Limits:
    """Every bound, in the unit that its name ends with, or a number. Tests pass small ones."""

    # ---- connections ---------------------------------------------------------------------------------------------
    # More than hosts and people of a large pool have, and few enough that their buffers fit into a machine's memory.
    connections: int = 4096
    # Descriptors that connections cannot take: logs, pipes to workers, blobs. A pool has some 20 of them, and one a worker.
    kept_descriptors: int = 256
    # TCP and TLS handshake and HTTP/2's first frame: three round trips, of a second where the network is at its worst.
    handshake_s: float = 5.0
    # A connection without a call. A client whose connection was closed meanwhile opens another without anybody noticing.
    idle_s: float = 60.0
    # HTTP/2 streams of one connection. gRPC refuses without a word, and counts those that are just ending: twice and more
    # what the door lets in of one connection, which says why.
    streams_each: int = 256
    # A token, a user agent and a deadline take less than 500.
    metadata_bytes: int = 8 << 10
    # gRPC's own default, which bulk data keep below as they travel in chunks.
    message_bytes: int = 4 << 20

    # Of browsers at the page, which open up to six each, and of who asks for figures, each of which takes a thread.
    page_connections: int = 64
    metrics_connections: int = 8
    # Until a request has come there.
    silent_http_s: float = 5.0

    # ---- calls ---------------------------------------------------------------------------------------------------
    # Between the beginning of a call and its first message; clients send both at once.
    first_message_s: float = 5.0
    # Calls whose first message has not come. If there are more the oldest is ended: an honest one lasts a round trip.
    silent_calls: int = 64
    # Open streams of jobs: those that wait, those that run, and those that are refused at this moment.
    jobs: int = 256
    jobs_each: int = 16
    # A client sends two blobs at once, and pieces of a stream besides.
    uploads: int = 64
    uploads_each: int = 8
    # A host that joined fetches one at a time.
    downloads: int = 128
    downloads_each: int = 8
    # Answered in milliseconds; so many at a time are thousands a second.
    short_calls: int = 128
    short_calls_each: int = 64
    # For how long a stream of a blob or a log may wait for a reader who takes nothing.
    unread_s: float = 30.0

    # ---- hosts ---------------------------------------------------------------------------------------------------
    # That may have joined at once, and the workers that they may offer in all. Each is a connection and two threads of the
    # control process (`benchmarks/results/simulated_hosts.md`); more of them need more `connections`, too.
    hosts: int = 64
    joined_workers: int = 512

    # ---- jobs ----------------------------------------------------------------------------------------------------
    queued_jobs: int = 64
    # Jobs that have ended and are still listed.
    remembered_jobs: int = 100
    # The first message of a job, with its names and options; a long path and all options there are take 6 KB.
    opening_bytes: int = 64 << 10
    # Linux's longest path.
    script_bytes: int = 4096
    # Names of modes, versions, workers, hosts.
    name_bytes: int = 256
    # Of a script's name or a reason, in the list of jobs: with a job for each stream above the list fits into a message.
    listed_bytes: int = 1024
    # Of a worker's own words about its failure; TensorFlow's longest seen had 9 KB.
    failure_bytes: int = 64 << 10
    # Instructions that are kept for a job that waits for workers; then its stream is not read until it has some. A
    # program and arrays travel as blobs, their names take 100 bytes.
    early_bytes: int = 1 << 20
    # What a worker has not taken yet; then the client's stream is not read.
    untaken_bytes: int = 16 << 20
    # What a client has not read yet, then its job ends: 15 outputs of steps of the largest size a message can have.
    unread_bytes: int = 64 << 20
    unread_bytes_in_all: int = 256 << 20
    # Drains, programs, states and pieces of a stream that are on their way at once; a client has a hundred at most.
    pending: int = 4096
    # Blobs that one job uses.
    job_blobs: int = 65_536
    # Snapshots of one session: two for each of its programs.
    session_blobs: int = 4096
    # A worker's account of a job, and a sample of what it uses, of which the newest are kept; some 200 bytes each.
    account_bytes: int = 64 << 10

    # ---- the store -----------------------------------------------------------------------------------------------
    # A directory of so many is read in 50 ms.
    blobs: int = 65_536
    # Names in one question which blobs are missing; each is looked for in the file system.
    asked_blobs: int = 8192
    # An upload is given room as its bytes come, so much at a time.
    upload_step_bytes: int = 16 << 20
    # Slower than a modem: whoever brings less holds room and a stream for nothing.
    upload_bytes_s: int = 4096
    # Of what the disk has left, unfinished uploads of one client may hold so much.
    upload_share: float = 0.75
    # Of the disk, at most a twentieth: logs and the machine's other users need some.
    kept_disk_bytes: int = 1 << 30


DEFAULT = Limits()
_NAMES = tuple(field.name for field in dataclasses.fields(Limits))
# Of a store that one user has alone: the disk bounds it.
OWN_STORE = Limits(kept_disk_bytes=0, blobs=sys.maxsize)


def changed(limits: Limits, asked: Sequence[str]) -> Limits:
    """Returns the bounds with those that an operator wants otherwise.

    Args:
        limits: As they are.
        asked: NAME=NUMBER each.

    Raises:
        UsageError: There is none of this name, or it is no number above 0.
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
    """Refuses a name from elsewhere that is too long.

    Raises:
        CapacityError: It is.
    """
    size = len(text.encode())
    if size > bound_bytes:
        raise CapacityError(f"{what} may have {bound_bytes:,} bytes. Received: {size:,} bytes, {cut(text, 40)!r}")


def cut(text: str, bound_bytes: int) -> str:
    """Returns the beginning of a text, of so many bytes at most."""
    raw = text.encode()
    return text if len(raw) <= bound_bytes else raw[: bound_bytes - 3].decode(errors="ignore") + "…"
