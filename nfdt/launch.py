"""How an asynchronous job becomes processes: on one host a single one, which opens no port."""

from collections.abc import Mapping

from fdt.runtime import Placement
from nfdt.options import read_options


class ParameterServerLauncher:
    """See `fdt.runtime.Launcher`."""

    engine = "nfdt.runtime:ParameterServerEngine"
    spans_hosts = False

    def check(self, options: Mapping[str, str]) -> None:
        """Reads the options, as the job's process will."""
        read_options(options)

    def num_processes(self, num_workers: int) -> int:
        """Workers and parameter servers are devices of one process."""
        return 1

    def rendezvous(self, placement: Placement) -> "NoRendezvous":
        """Nobody has to be found."""
        return NoRendezvous()


class NoRendezvous:
    """See `fdt.runtime.Rendezvous`."""

    def environment(self, rank: int) -> Mapping[str, str]:
        """Returns nothing to add."""
        return {}

    def close(self) -> None:
        """Does nothing."""
