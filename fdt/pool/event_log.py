"""Records the events that a pool's state handled and its instructions: `fdt serve --record-events FILE`.

One JSON object a line: the arguments of the state's constructor, then each event with its instructions. The state has no I/O,
so the same events give the same instructions, and a user's record can be replayed (`tests/helpers/replay.py`). The file holds
names of persons and scripts, error messages and the ends of workers' logs; it holds no token, no data and no program.
"""

import dataclasses
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, Self

from fdt.base import log
from fdt.base.config import Timing
from fdt.base.limits import Limits
from fdt.base.versions import host_versions
from fdt.errors import UsageError
from fdt.pool.state.entities import Job
from fdt.pool.state.events import Event, Instruction
from fdt.pool.state.worker_starts import Processes

# A replay needs the beginning, so later events are left out once the file has this size.
_MAX_BYTES = 64 << 20


class EventLog:
    """A file that takes events until it is full; only its owner may read it."""

    def __init__(self, path: Path, max_bytes: int = _MAX_BYTES) -> None:
        """Creates the file.

        Raises:
            UsageError: The file exists, or cannot be made.
        """
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UsageError(f"cannot record events: {error}. Expected the name of a new file.") from error
        self._left = max_bytes
        # A session's bytes give access to its snapshots, so a salted hash is written in their place; equal bytes have equal
        # hashes.
        self._salt = secrets.token_bytes(16)

    def began(
        self,
        num_workers: int,
        modes: Mapping[str, Processes],
        timing: Timing,
        max_jobs: int | None,
        limits: Limits,
        before: Iterable[Job],
        placing: Any,
    ) -> dict[str, Processes]:
        """Records the state's constructor arguments; returns `modes` in wrappers that record their results."""
        self._write(
            version=dict(host_versions()),
            num_workers=num_workers,
            modes=list(modes),
            timing=timing,
            max_jobs=max_jobs,
            limits=limits,
            before=list(before),
            # The state uses only these numbers of the scheduler's configuration.
            placing=placing and {name: getattr(placing, name) for name in ("least", "most", "slots", "gpus", "idle_s")},
        )
        return {mode: self._noted(mode, each) for mode, each in modes.items()}

    def add(self, event: Event, instructions: Sequence[Instruction]) -> None:
        """Records an event and its instructions."""
        self._write(event=event, instructions=list(instructions))

    def close(self) -> None:
        """Closes the file."""
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _noted(self, mode: str, processes: Processes) -> Processes:
        known: dict[int, int] = {}

        def noted(num_workers: int) -> int:
            if num_workers not in known:
                known[num_workers] = processes(num_workers)
                self._write(processes=[mode, num_workers, known[num_workers]])
            return known[num_workers]

        return noted

    def _write(self, **fields: Any) -> None:
        line = json.dumps(encode(fields, self._salted), ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        if self._left:
            if len(line) > self._left:
                line, self._left = b'{"full":true}\n', 0
            else:
                self._left -= len(line)
            try:
                os.write(self._file, line)
            except OSError as error:
                self._left = 0
                log.notice(f"events are no longer recorded: {error}")

    def _salted(self, value: bytes) -> bytes:
        return hashlib.blake2b(value, key=self._salt, digest_size=16).digest() if value else value


def encode(value: Any, hidden: Callable[[bytes], bytes] = bytes) -> Any:
    """Returns a value in JSON's types: a dataclass becomes an object with its class's name under "".

    Args:
        value: A value in an event, in an instruction, or in the state's constructor arguments.
        hidden: Returns the bytes to write in place of the given ones.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: encode(getattr(value, field.name), hidden) for field in dataclasses.fields(value)}
        return {"": type(value).__name__, **fields}
    if isinstance(value, Mapping):
        return {str(key): encode(each, hidden) for key, each in value.items()}
    if isinstance(value, Set):
        return sorted(encode(each, hidden) for each in value)
    if isinstance(value, list | tuple):
        return [encode(each, hidden) for each in value]
    if isinstance(value, bytes):
        return {"bytes": hidden(value).hex()}
    return value
