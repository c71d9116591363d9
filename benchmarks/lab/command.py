"""Runs one script over a laboratory: hosts that are network namespaces, behind links of a chosen bandwidth.

    python benchmarks/lab --hosts 4 --bandwidth 100Mbit -- --mode sync SCRIPT ARGS                              # ring
    python benchmarks/lab --hosts 4 --bandwidth 100Mbit -- --mode async --ps 1 --ps-place pool SCRIPT ARGS      # central
    python benchmarks/lab --hosts 4 --bandwidth 100Mbit -- --mode async --ps 4 SCRIPT ARGS                      # sharded
    python benchmarks/lab --hosts 4 --bandwidth 100Mbit --measure    # what TCP gets through the links; no pool
    python benchmarks/lab --clear                                    # removes what a laboratory that was killed left behind

What follows -- is for `fdt run`; its `--server` and credentials are added, and `--workers`, if it is not there: one a host.
The pool's own namespace has a link like the others, and no workers. Everything is removed at the end. Needs root, and iproute2
(`ip`, `tc`); the exit status is the script's own, 2 where there can be no laboratory or the command line is wrong.
"""

import argparse
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType

import processes

import fdt.cli.command_line
import fdt.cli.options
from fdt.errors import UsageError
from fdt.forecast.quantities import bandwidth, duration
from lab import throughput
from lab.link import Link
from lab.network import LabError, Network, clear, running
from lab.pool import Lab, since

# As of `fdt run`: the laboratory cannot be had, and the pool in it failed.
USAGE, FAILED = 2, 125
_ENDS = (signal.SIGTERM, signal.SIGHUP)


def parse_arguments(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Returns the laboratory's options, and what is for `fdt run`."""
    parser = argparse.ArgumentParser(
        prog="python benchmarks/lab", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=2, metavar="N", help="with one worker each (default: 2)")
    parser.add_argument("--bandwidth", metavar="RATE", help="of each link in each direction: 10Mbit, 100Mbit, 1Gbit")
    parser.add_argument("--latency", metavar="TIME", help="one way, such as 1ms; needs netem in the kernel")
    parser.add_argument("--pool-workers", type=int, default=0, metavar="N", help="in the pool's namespace (default: 0)")
    parser.add_argument("--traffic", action="store_true", help="say at the end how much went over each link")
    parser.add_argument("--measure", action="store_true", help="only measure the links' throughput")
    parser.add_argument("--seconds", type=float, default=5.0, metavar="S", help="of each measurement (default: 5)")
    parser.add_argument("--clear", action="store_true", help="only remove what laboratories left that were killed")
    own, separator, run = list(arguments), "--" in arguments, []
    if separator:
        own, run = own[: own.index("--")], own[own.index("--") + 1 :]
    options = parser.parse_args(own)
    try:
        options.link = Link(
            8 * bandwidth(options.bandwidth) if options.bandwidth else 0.0,
            duration(options.latency) if options.latency else 0.0,
        )
    except UsageError as error:
        parser.error(str(error))
    if not options.clear and not options.bandwidth:
        parser.error("--bandwidth is expected, such as 100Mbit")
    if not (options.clear or options.measure or run):
        parser.error("a script is expected after --")
    return options, run


def mode_of(arguments: Sequence[str]) -> str:
    """Returns the mode of a run: what a pool has to offer to it. Ends this process if `fdt run` would not understand."""
    mode: str = fdt.cli.command_line.parse("fdt", tuple(fdt.cli.options.MODES), ["run", *arguments]).mode
    return mode


def run(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Runs the script; its output is this process's."""
    with Lab(options.hosts, options.bandwidth, options.latency, mode_of(arguments), options.pool_workers) as lab:
        before = lab.network.traffic()
        process = subprocess.Popen(lab.command(arguments), env=processes.environment())
        try:
            status = process.wait()
        finally:
            process.terminate()
            process.wait(30)
        if options.traffic:
            sent, received = since(before, lab.network.traffic())
            for member in sent:
                print(
                    f"lab: {member} ({lab.network.address(member)}) sent {sent[member] / 1e6:.2f} MB, "
                    f"received {received[member] / 1e6:.2f} MB",
                    file=sys.stderr,
                )
    return status


def measure(options: argparse.Namespace) -> int:
    """Prints what TCP gets through the links."""
    with Network(options.hosts, options.link) as network:
        print("\n".join(throughput.describe(network, throughput.measure(network, options.seconds))))
    return 0


def clean() -> int:
    """Removes what is stale, and says what is not."""
    for name in clear():
        print(f"removed {name}")
    for name in running():
        print(f"left {name}: its process still runs")
    return 0


def main() -> int:
    options, arguments = parse_arguments(sys.argv[1:])
    # Whoever asks this process to end gets the namespaces removed too.
    for number in _ENDS:
        signal.signal(number, _end)
    try:
        if options.clear:
            return clean()
        return measure(options) if options.measure else run(options, arguments)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return USAGE
    except processes.RunFailedError as error:
        print(f"lab: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _end(number: int, frame: FrameType | None) -> None:
    # Asking twice must not interrupt the removal.
    for each in _ENDS:
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + number)
