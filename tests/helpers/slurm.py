"""A Slurm cluster for a test: a controller and two nodes on this machine, with ports, keys and folders of their own."""

import contextlib
import os
import platform
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from tests.helpers import packages
from tests.helpers.waiting import wait_until

_PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")
_PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged")
_COMMAND_S, _START_S = 30.0, 30.0

_CONFIGURATION = """\
ClusterName=fdt
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CryptoType=crypto/munge
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
KillWait=3
MpiDefault=none
SchedulerParameters=batch_sched_delay=0,sched_interval=1
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
NodeName=c1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 State=UNKNOWN
NodeName=c2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 State=UNKNOWN
PartitionName=main Nodes=c[1-2] Default=YES MaxTime=INFINITE State=UP
"""


class Cluster:
    """A running cluster; `SLURM_CONF` in the environment leads to it."""

    on = ("--on", "slurm", "--trusted-network", "lo")

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def ask(self, *command: str) -> str:
        """Returns what one of Slurm's commands prints."""
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_S, check=False)
        assert not done.returncode, f"{' '.join(command)}: {done.stderr}"
        return done.stdout

    def queue(self) -> list[str]:
        """Returns the states of all jobs that have not ended."""
        return self.ask("squeue", "--noheader", "--format=%T").split()

    def running(self) -> list[str]:
        """Returns the numbers of jobs that run."""
        return self.ask("squeue", "--noheader", "--states=running", "--format=%i").split()

    def hosts(self) -> list[psutil.Process]:
        """Returns processes of hosts that this cluster has started."""
        found = [each for each in psutil.process_iter(["cmdline"]) if "--join" in (each.info["cmdline"] or [])]
        return [each for each in found if self._is_its(each)]

    def _is_its(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get("SLURM_CONF", "").startswith(str(self.folder))
        except psutil.Error:
            return False

    def drain(self, state: str) -> None:
        """Has both nodes take no more jobs ("drain"), or take some again ("resume")."""
        self.ask("scontrol", "update", "nodename=c[1-2]", f"state={state}", "reason=test")
        if state == "resume":
            wait_until(_both_idle, lambda: "the nodes are not idle", _START_S)


@contextmanager
def slurm() -> Iterator[Cluster]:
    """A cluster for the length of a `with` block; skips the test where there cannot be one."""
    if os.geteuid() != 0:
        pytest.skip("Slurm's daemons start jobs as root")
    packages.require(_PROGRAMS, _PACKAGES)
    folder = Path(tempfile.mkdtemp(prefix="fdt-slurm-", dir="/tmp"))
    with pytest.MonkeyPatch.context() as patch, ExitStack() as ending:
        ending.callback(shutil.rmtree, folder, ignore_errors=True)
        (folder / "state").mkdir()
        (folder / "munge.key").write_bytes(secrets.token_bytes(128))
        (folder / "munge.key").chmod(0o600)
        configuration = folder / "slurm.conf"
        host = platform.node().partition(".")[0]
        configuration.write_text(_CONFIGURATION.format(host=host, folder=folder, ports=_free_ports(3)))
        patch.setenv("SLURM_CONF", str(configuration))
        files = {"socket": "munge.sock", "key-file": "munge.key", "pid-file": "munged.pid", "log-file": "munged.log"}
        munged = [f"--{option}={folder / name}" for option, name in files.items()]
        _daemon(ending, ["munged", "--foreground", "--force", f"--seed-file={folder}/seed", *munged])
        _wait((folder / "munge.sock").exists, "munged")
        _daemon(ending, ["slurmctld", "-D", "-c", "-f", str(configuration)])
        for node in ("c1", "c2"):
            (folder / f"spool.{node}").mkdir()
            _daemon(ending, ["slurmd", "-D", "-N", node, "-f", str(configuration)])
        _wait(_both_idle, "slurmctld and slurmd")
        cluster = Cluster(folder)
        # Whatever a test has left goes before the daemons do.
        ending.callback(cluster.ask, "scancel", "--quiet", "--user=root")
        yield cluster


def _free_ports(number: int) -> Sequence[int]:
    with ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _daemon(ending: ExitStack, command: Sequence[str]) -> None:
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    ending.callback(_end, process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_START_S)
    process.kill()
    process.wait(_START_S)


def _both_idle() -> bool:
    done = subprocess.run(
        ["sinfo", "--noheader", "--format=%T %D"], capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout.split() == ["idle", "2"]


def _wait(is_there: Callable[[], bool], what: str) -> None:
    try:
        wait_until(is_there, lambda: what, _START_S)
    except AssertionError:
        pytest.skip(f"{what} did not start within {_START_S:.0f} s")
