"""Starts and ends hosts as Slurm batch jobs, by sbatch, squeue and scancel. Needs no accounting (sacct)."""

import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from fdt.errors import UsageError
from fdt.pool.scheduling.request import (
    CA_FILE,
    TOKEN_FILE,
    File,
    HostRequest,
    Observation,
    Rendering,
    SchedulerUnreachableError,
)

# Slurm's commands wait 10 s for the controller's answer, unless configured otherwise.
_LIMIT_S = 30.0
# Slurm signals a host this long before its time limit. The signal may be a minute late.
_NOTICE_S = 60
_WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "SUSPENDED")
_RUNNING = ("RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "STOPPED", "RESIZING")
# Error messages of Slurm's commands while the controller is not reachable.
_AWAY = re.compile(
    r"Unable to contact slurm controller|Socket timed out|Connection (refused|timed out)|Zero Bytes"
    r"|configuration source",
    re.I,
)

# The error of `sbatch --test-only` if no available node has the requested resources.
_NO_NODE = "Requested node configuration is not available"
_USABLE = ("idle", "mixed", "allocated", "completing", "planned", "reserved")

# Options that this module sets itself. One node per job, since nodes of one job could not be given back separately.
_OWN = (
    *("--array", "--error", "--job-name", "--nodes", "--ntasks", "--open-mode", "--output", "--parsable", "--signal"),
    *("--test-only", "--wrap", "-J", "-N", "-a", "-e", "-n", "-o"),
)

_SCRIPT = """\
#!/bin/sh
#SBATCH --job-name={pool}
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task={slots}
{gpus}#SBATCH --signal=B:TERM@{notice}
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output={log}
[ -r {token} ] || {{ printf 'fdt: %s does not see %s: is it shared with all nodes?\\n' "$(hostname)" {folder}; exit 3; }}
exec {command}
"""


class Slurm:
    """Implements `fdt.pool.scheduling.request.Scheduler`; arguments are options of sbatch."""

    # Slurm requeues a job only if its node fails, after some minutes; a job whose host was killed ends.
    restarts = False

    def render(self, request: HostRequest) -> Rendering:
        """Returns the job's script and sbatch's command line; arguments on it override options in the script."""
        own = [given for given in request.config.arguments if given.partition("=")[0] in _OWN]
        if own:
            raise UsageError(f"A host is one Slurm job on one node, whose {own[0]} FDT sets. Leave it out.")
        files = [File(TOKEN_FILE, request.token + "\n", 0o600)]
        if request.tls_ca:
            files.append(File(CA_FILE, request.tls_ca, 0o644))
        files.append(File(f"{request.name}.sh", _script(request), 0o700))
        return Rendering(tuple(files), (tuple(_submission(request, "--parsable")),))

    def check(self, request: HostRequest) -> None:
        """Runs `sbatch --test-only`, which reports unknown partitions and missing nodes without making a job."""
        for command in ("sbatch", "squeue", "scancel"):
            if shutil.which(command) is None:
                raise UsageError(
                    f"Slurm's command {command} is not installed on this machine. Serve the pool from a login or submit node, "
                    "where `sbatch` works. Received: --on slurm"
                )
        try:
            self.render(request)
            _slurm(["sbatch", "--test-only", *request.config.arguments], _script(request))
        except UsageError as error:
            # Slurm reports this for nodes that are down, too, and a request may wait for these.
            if _NO_NODE not in str(error) or _has_nodes(request.config.arguments):
                raise
        except SchedulerUnreachableError as error:
            raise UsageError(f"Slurm does not answer: {error}. Does `sinfo` work on this machine?") from error

    def start(self, request: HostRequest) -> str:
        """Submits the job's script, which must be written already; returns the job's number."""
        number = _slurm(_submission(request, "--parsable")).strip()
        # "NUMBER", or "NUMBER;CLUSTER".
        return number.splitlines()[-1].partition(";")[0]

    def observe(self, pool: str, started: Mapping[str, HostRequest]) -> Mapping[str, Observation]:
        """Asks squeue for the pool's jobs. One that it no longer lists ended some minutes ago."""
        text = _slurm(["squeue", "--noheader", "--states=all", f"--name={pool}", "--format=%i|%T|%r|%N"])
        listed = {fields[0]: fields[1:] for line in text.splitlines() if len(fields := line.strip().split("|")) == 4}
        return {
            number: _observation(listed.get(number, ["ENDED", "", ""]), _log(request))
            for number, request in started.items()
        }

    def stop(self, names: Sequence[str]) -> None:
        """Cancels jobs by their numbers."""
        if names:
            _slurm(["scancel", "--quiet", *names])

    def sweep(self, pool: str) -> None:
        """Cancels all jobs that have the pool's name."""
        _slurm(["scancel", "--quiet", f"--name={pool}"])


def _script(request: HostRequest) -> str:
    config, folder = request.config, request.folder
    return _SCRIPT.format(
        pool=request.pool,
        slots=config.slots,
        gpus=f"#SBATCH --gpus-per-node={config.gpus}\n" if config.gpus else "",
        notice=_NOTICE_S,
        # Escape Slurm's pattern characters, and quote as its options allow.
        log=shlex.quote(str(_log(request)).replace("%", "%%")),
        token=shlex.quote(str(folder / TOKEN_FILE)),
        folder=shlex.quote(str(folder)),
        # `exec` replaces the shell, so that Slurm's signal reaches the host itself.
        command=shlex.join(request.command()),
    )


def _log(request: HostRequest) -> Path:
    return request.folder / f"{request.name}.log"


def _submission(request: HostRequest, how: str) -> list[str]:
    return ["sbatch", how, *request.config.arguments, str(request.folder / f"{request.name}.sh")]


def _has_nodes(arguments: Sequence[str]) -> bool:
    """Returns whether a node of the partition can be used now. The state of one that does not answer ends with "*"."""
    named = [each for each in arguments if each.startswith("--partition=")]
    return any(state in _USABLE for state in _slurm(["sinfo", "--noheader", "--format=%T", *named]).split())


def _observation(fields: Sequence[str], log: Path) -> Observation:
    state, reason, nodes = fields
    words = state.lower() + (f" ({reason})" if reason not in ("", "None") else "") + (f" on {nodes}" if nodes else "")
    return Observation(state in _WAITING, state not in (*_WAITING, *_RUNNING), words, log)


def _slurm(command: Sequence[str], text: str = "") -> str:
    """Runs one of Slurm's commands and returns what it printed.

    Raises:
        UsageError: Slurm refuses the command.
        SchedulerUnreachableError: Slurm does not answer.
    """
    try:
        done = subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SchedulerUnreachableError(str(error)) from error
    if not done.returncode:
        return done.stdout
    said = "; ".join(line.strip() for line in done.stderr.splitlines() if line.strip()) or f"status {done.returncode}"
    if _AWAY.search(said):
        raise SchedulerUnreachableError(said)
    raise UsageError(f"Slurm refuses the request: {said}. Received: {shlex.join(command)}")
