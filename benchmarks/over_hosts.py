"""Runs `fdt run --mode async` on a pool of several hosts, all of them this machine: one worker a host, or as it is told.

    python benchmarks/over_hosts.py --hosts 2 [--slots 2 --own 1] [--divide-cores] [OPTION of fdt run …] -- SCRIPT …

The hosts meet on loopback and share the machine's cores, as the processes of TensorFlow's own parameter server training do that
this is compared with.
What the script prints is printed; the pool ends with it.
"""

import argparse
import contextlib
import os
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path

import processes


def parse_arguments() -> tuple[argparse.Namespace, list[str], list[str]]:
    """Returns where workers are, options of `fdt run`, and the script with its arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--slots", type=int, default=1, help="workers of each host that joins")
    parser.add_argument("--own", type=int, help="workers of the pool's own machine; default: as many")
    parser.add_argument("--workers", type=int, help="of the job; default: all")
    parser.add_argument(
        "--divide-cores", action="store_true", help="each host has its part of the machine's cores to itself"
    )
    parser.add_argument("--open-servers", action="store_true", help="without tunnels")
    before, _, script = " ".join(sys.argv[1:]).partition(" -- ")
    known, options = parser.parse_known_args(before.split())
    if not script:
        parser.error("a script is expected after --")
    return known, options, script.split()


def _on(host: int, known: argparse.Namespace) -> list[str]:
    """Returns what confines a host to its cores."""
    cores = sorted(os.sched_getaffinity(0))[host :: known.hosts]
    return ["taskset", "--cpu-list", ",".join(map(str, cores))] if known.divide_cores else []


def main() -> int:
    known, options, script = parse_arguments()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as pool:
        token = Path(folder, "token")
        token.touch(0o600)
        token.write_text(secrets.token_hex())
        common = ["--trusted-network", "lo", "--token-file", str(token), *["--open-servers"] * known.open_servers]
        own = known.own or known.slots
        serve = _on(0, known) + processes.fdt(
            "serve", "--mode", "async", "--workers", str(own), "--listen", "127.0.0.1:0", *common
        )
        address = pool.enter_context(processes.serving(serve, r"127\.0\.0\.1:\d+", Path(folder, "pool.log")))[0]
        for number in range(1, known.hosts):
            join = _on(number, known) + processes.fdt("serve", "--join", address, "--slots", str(known.slots), *common)
            log = Path(folder, f"host-{number}.log")
            pool.enter_context(processes.serving(join, "joined the pool", log))
        where = ["--server", address, "--token-file", str(token)]
        workers = known.workers or own + (known.hosts - 1) * known.slots
        run = processes.fdt("run", "--mode", "async", "--workers", str(workers), *where, *options, *script)
        return subprocess.run(run, cwd=processes.ROOT, env=processes.environment(), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
