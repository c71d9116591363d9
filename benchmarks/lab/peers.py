"""How other systems are started on a laboratory's hosts."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from processes import ROOT

from lab import cores
from lab.network import DEVICE, POOL, Network

_PEERS = ROOT / "benchmarks" / "peers"


def places(network: Network) -> dict[str, str]:
    """Returns the environment that tells peers where hosts are."""
    hosts = " ".join(f"{network.address(host)}={network.namespace(host)}" for host in network.hosts)
    within = {"LAB_CORES": str(cores.ROOT)} if network.has_cores else {}
    return {"LAB_HOSTS": hosts, "LAB_ADDRESS": network.address(POOL), **within}


def horovod(network: Network, script: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Returns the command, and its environment, that runs a rank of a script on each host.

    horovodrun starts them as its documentation says, by ssh: `peers/ssh` takes its place.
    """
    hosts = ",".join(f"{network.address(host)}:1" for host in network.hosts)
    horovodrun = str(Path(sys.executable).with_name("horovodrun"))
    where = ["-np", str(len(network.hosts)), "-H", hosts, "--gloo", "--network-interfaces", DEVICE]
    path = {"PATH": os.pathsep.join([str(_PEERS), os.environ["PATH"]])}
    # `ip netns exec` would hide the folders of control groups from `peers/ssh`.
    inside = ["nsenter", f"--net=/run/netns/{network.namespace(POOL)}"]
    return [*inside, horovodrun, *where, *script], {**path, **places(network)}
