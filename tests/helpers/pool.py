"""A pool of its own for a test: `fdt serve` on a free port of loopback, with a token."""

import dataclasses
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.helpers.processes import PYTHON, Background, background

_START_S = 120.0
_ADDRESS = re.compile(r"127\.0\.0\.1:(\d+)")


@dataclasses.dataclass(frozen=True)
class Pool:
    """A running pool and how to reach it."""

    address: str
    token_file: Path
    num_workers: int
    process: Background

    @property
    def options(self) -> tuple[str, ...]:
        """What `fdt run` needs to use this pool."""
        return ("--server", self.address, "--token-file", str(self.token_file))


@contextmanager
def serve(
    directory: Path,
    num_workers: int = 2,
    mode: str = "sync",
    options: Sequence[str] = (),
    python: str | Path = PYTHON,
) -> Iterator[Pool]:
    """A pool of an environment for the length of a `with` block; its address is read from the one line it prints."""
    token_file = write_token(directory / "token", "a-token-for-this-test-only")
    command = [python, "-m", "fdt", "serve", "--listen", "127.0.0.1:0", "--workers", str(num_workers), "--mode", mode]
    with background([*command, "--token-file", str(token_file), *options], cwd=directory) as process:
        line = process.wait_for_line("127.0.0.1:", limit_s=_START_S)
        match = _ADDRESS.search(line)
        assert match and match[1] != "0", f"no address in {line!r}"
        yield Pool(match[0], token_file, num_workers, process)


def write_token(path: Path, token: str) -> Path:
    """Writes a token file that only its owner can read."""
    path.touch(mode=0o600)
    path.write_text(token + "\n")
    return path
