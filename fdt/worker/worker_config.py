"""Defines a worker process's settings, which the process that starts it passes in the environment."""

import dataclasses
import json
from collections.abc import Mapping

from fdt.base.config import Timing


@dataclasses.dataclass(frozen=True)
class WorkerConfig:
    """The pool's settings for a worker process. The secret with which it attaches comes by a pipe.

    Attributes:
        pool: The address to attach to: "unix:..." or, on a host that joined the pool, "host:port".
        name: The worker's name.
        store: Directory of the host's blobs.
        folder: The worker's own folder, to write in.
        timing: The pool's intervals and limits.
        tls_ca: Authority that signed the pool's certificate; None as for `fdt.base.config.Credentials`.
        joined: Whether this host joined the pool, so that its store fetches blobs from the pool.
        data: Folders of data sets that it reads.
        reads_all: Whether it reads all files that the client names; see `fdt.base.config.ServeConfig`.
    """

    pool: str
    name: str
    store: str
    folder: str
    timing: Timing
    tls_ca: str | None = None
    joined: bool = False
    data: tuple[str, ...] = ()
    reads_all: bool = False

    def environment(self) -> dict[str, str]:
        """Returns the variable that `from_environment` reads."""
        return {"FDT_WORKER": json.dumps(dataclasses.asdict(self))}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "WorkerConfig":
        """Returns the configuration that `environment` wrote."""
        fields = json.loads(environment["FDT_WORKER"])
        return cls(**{**fields, "timing": Timing(**fields["timing"]), "data": tuple(fields["data"])})
