"""The options of the commands, read from the command line.

Only the standard library is imported, so that `--help` is quick.
"""

import argparse
import difflib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NoReturn

from fdt import __version__, combinations, values

# What a person calls the modes.
MODES = {"sync": "synchronous", "async": "asynchronous"}

# Options of the runtimes, by their names in a job; what they may be is for the runtime to say (`fdt.runtime.Launcher`).
RUNTIME_OPTIONS = {
    "wire": (
        "FORM",
        "how parameters and gradients travel: exact, or fp16, rounded to half their bytes (default: exact)",
    ),
    "relax": (
        "WHAT",
        "what workers may do each for itself, for speed: batch-norm (moments of its own rows), random (numbers of its own), "
        "or both with a comma (default: nothing)",
    ),
    "ps": ("K", "parameter servers that share the model (default: 1)"),
    "ps-place": (
        "WHERE",
        "where they are if a job is on several hosts: hosts, beside the workers, or pool, on the pool's own machine "
        "(default: hosts)",
    ),
    "update": (
        "RULE",
        "what a parameter server does with a gradient that comes late: asgd, dc-asgd-c, dc-asgd-a, dc-asgdk, ddc-asgd, "
        "dynsgd; or averaging of weights (default: ddc-asgd)",
    ),
    "ddc": ("FORM", "of ddc-asgd: robust or thesis (default: robust)"),
    "lambda0": ("X", "strength of the compensation of delays"),
    "q": ("X", "delay at which a gradient counts half"),
    "max-delay": ("S", "how many steps a worker may be ahead of the slowest (default: any)"),
    "average-every": ("H", "steps of a worker between two averages, with --update averaging (default: 1)"),
    "outer": ("METHOD", "what is done with the average: averaging or diloco"),
}

# Commands that run a script.
_WITH_SCRIPT = ("run", "verify", "check", "predict", "compare")

# Set to anything, it is `--no-walls` for every pool of this machine, also the one that lives for the length of a run.
NO_WALLS = "FDT_NO_WALLS"
DEFAULT_LISTEN = "127.0.0.1:7077"
DEFAULT_WORKERS = 2


class _Parser(argparse.ArgumentParser):
    """Errors read like all others of ours."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.format_usage()}fdt: {message}\n")

    def unknown(self, what: str, given: str, known: Iterable[str]) -> NoReturn:
        """Leaves with what is unknown, and with what may have been meant."""
        alike = difflib.get_close_matches(given, list(known), n=1, cutoff=0.6)
        meant = f" Did you mean {alike[0]}?" if alike else ""
        self.error(f"unknown {what} {given!r}.{meant}")

    def options(self) -> list[str]:
        """Returns all options, as they are written."""
        return [text for action in self._actions for text in action.option_strings]


def parse(program: str, modes: tuple[str, ...], argv: Sequence[str]) -> argparse.Namespace:
    """Reads a command line; leaves as argparse does (SystemExit) when it is wrong or asks for help.

    Returns:
        The options; `command` is the command's name.
    """
    parser, commands = build_parser(program, modes)
    ours, script, arguments = _split(commands, argv)
    if ours and not ours[0].startswith("-") and ours[0] not in commands:
        parser.unknown("command", ours[0], commands)
    options, rest = parser.parse_known_args(ours)
    if rest:
        command = commands[options.command]
        if rest[0].startswith("-"):
            command.unknown("option", rest[0].split("=")[0], command.options())
        command.error(f"expected no argument here. Received: {rest[0]!r}")
    if options.command in _WITH_SCRIPT:
        combinations.check_script(commands[options.command], options, script, arguments)
    if options.command == "run":
        combinations.check_run(commands["run"], options)
    if options.command == "predict":
        combinations.check_predict(commands["predict"], options)
    if options.command == "serve":
        combinations.check_serve(commands["serve"], options)
        options.mode = options.mode or modes[0]
    return options


def misplaced(options: argparse.Namespace, source: str) -> str | None:
    """Returns what to say of an option of ours that stands behind a script which does not know it; None if there is none.

    Args:
        options: What `parse` gave.
        source: Text of the script.
    """
    _, commands = build_parser("fdt", tuple(MODES))
    known = commands[options.command].options()
    for argument in options.arguments:
        name = argument.split("=")[0]
        if (
            name.startswith("--")
            and name in known
            and name[2:] not in source
            and name[2:].replace("-", "_") not in source
        ):
            return (
                f"{argument} stands behind the script, so it goes to the script, which does not mention it; an option of fdt's "
                f"stands before: fdt {options.command} {name} ... {options.script}"
            )
    return None


def _split(commands: dict[str, _Parser], argv: Sequence[str]) -> tuple[list[str], str | None, list[str]]:
    """Parts a command line at SCRIPT, so that nothing after it is ever read as ours.

    Returns:
        What argparse is to read, the script if there is one, and its arguments.
    """
    argv = list(argv)
    if not argv or argv[0] not in _WITH_SCRIPT or argv[0] not in commands:
        return argv, None, []
    valued = {text for action in commands[argv[0]]._actions if action.nargs != 0 for text in action.option_strings}
    index = 1
    while index < len(argv) and argv[index].startswith("-") and argv[index] not in ("-", "--", "-m", "-c"):
        index += 2 if argv[index] in valued else 1
    rest = argv[index + 1 :] if argv[index : index + 1] == ["--"] else argv[index:]
    return argv[:index], rest[0] if rest else None, rest[1:]


def build_parser(program: str, modes: tuple[str, ...]) -> tuple[_Parser, dict[str, _Parser]]:
    """Makes the parser and, by name, those of its commands."""
    parser = _Parser(
        prog=program, description="Trains an unmodified TensorFlow script on several workers.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"{program} {__version__}")
    kinds = parser.add_subparsers(metavar="COMMAND", required=True)
    commands: dict[str, _Parser] = {}

    def add(name: str, summary: str, usage: str | None = None) -> _Parser:
        commands[name] = kinds.add_parser(name, help=summary, description=summary, allow_abbrev=False, usage=usage)
        commands[name].set_defaults(command=name)
        return commands[name]

    run_usage = f"{program} run [OPTIONS] SCRIPT [ARGS...]"
    _add_run_options(add("run", "Run a script as python does; its training is distributed.", usage=run_usage), modes)
    usage = f"{program} check [OPTIONS] SCRIPT [ARGS...]"
    _add_check_options(
        add("check", "Tell what of a script would be distributed, without training.", usage=usage), modes
    )
    if "sync" in modes:
        usage = f"{program} verify [OPTIONS] SCRIPT [ARGS...]"
        summary = "Make a script's first training steps twice, here and on a pool, and compare."
        _add_verify_options(add("verify", summary, usage=usage))
    usage = f"{program} predict [OPTIONS] SCRIPT [ARGS...]"
    summary = "Tell how fast a script would be on more workers, and which form of training to take."
    _add_predict_options(add("predict", summary, usage=usage))
    if len(modes) > 1:
        usage = f"{program} compare [OPTIONS] SCRIPT [ARGS...]"
        summary = "Run a script's first training steps in every form, and show them side by side."
        _add_compare_options(add("compare", summary, usage=usage))
    _add_serve_options(add("serve", "Offer this machine's workers to others' runs: a pool."), modes)
    _add_pool_options(add("jobs", "List the jobs of a pool."), DEFAULT_LISTEN)
    for name, summary in (
        ("logs", "Print what a job's workers wrote."),
        ("cancel", "Cancel a job."),
    ):
        _add_pool_options(add(name, summary), DEFAULT_LISTEN)
        commands[name].add_argument("job", metavar="JOB", help="its name, as `jobs` shows it")
    _add_pool_options(add("doctor", "Tell what works on this machine, and how to mend what does not."), None)
    return parser, commands


def _add_run_options(parser: _Parser, modes: tuple[str, ...]) -> None:
    _add_pool_options(parser, None)
    parser.add_argument("--mode", choices=modes, default=modes[0], help="sync: all-reduce; async: parameter server")
    _add_workers(parser)
    parser.add_argument(
        "--batch",
        choices=("global", "per-worker"),
        default="global",
        help="what the script's batch_size means (default: global, split over the workers)",
    )
    parser.add_argument(
        "--scale-lr",
        choices=("none", "linear", "sqrt"),
        default="none",
        help="scale the learning rate with the workers, with --batch per-worker",
    )
    _add_runtime_options(parser)
    parser.add_argument("--report", type=Path, metavar="FILE", help="write what happened to this file, as JSON")
    _add_else(parser)
    parser.add_argument(
        "--stop-after", type=values.num_steps, metavar="S", help="end the script after S training steps"
    )
    parser.add_argument(
        "--warm-up", type=values.num_steps, metavar="W", help="have the report leave out the first W training steps"
    )
    parser.add_argument(
        "--tensorboard",
        type=Path,
        metavar="DIR",
        help="write what the workers used (cores, memory, network) for TensorBoard",
    )
    parser.add_argument(
        "--prediction",
        type=Path,
        metavar="FILE",
        help="what `predict --json` wrote; the report compares it with the run",
    )
    parser.epilog = "SCRIPT is a Python file (or a directory or zip file with a __main__.py); ARGS go to it untouched."


def _add_else(parser: _Parser) -> None:
    parser.add_argument(
        "--else",
        dest="otherwise",
        choices=("refuse", "local"),
        default="refuse",
        help="steps of eager loops that cannot be outlined are refused, or run on this machine (default: refuse)",
    )


def _add_runtime_options(parser: _Parser) -> None:
    asynchronous = parser.add_argument_group("asynchronous training")
    for name, (metavar, summary) in RUNTIME_OPTIONS.items():
        group = asynchronous if name not in ("wire", "relax") else parser
        group.add_argument(f"--{name}", metavar=metavar, help=summary)


def _add_check_options(parser: _Parser, modes: tuple[str, ...]) -> None:
    parser.add_argument("--mode", choices=modes, default=modes[0], help="sync: all-reduce; async: parameter server")
    _add_workers(parser)
    _add_else(parser)
    _add_runtime_options(parser)
    parser.epilog = "Exit status 0 if there is training and all of it can be distributed. No pool is needed."


def _add_verify_options(parser: _Parser) -> None:
    _add_pool_options(parser, None)
    _add_workers(parser)
    parser.add_argument(
        "--steps", type=values.num_steps, metavar="S", default=10, help="how many steps are compared (default: 10)"
    )
    parser.add_argument(
        "--tolerance",
        type=values.tolerance,
        metavar="X",
        default=1e-4,
        help="the largest difference that counts as rounding, relative (default: 1e-4)",
    )
    parser.epilog = (
        "Exit status 0 if all steps agree, 1 if not. The script ends after the last step that is compared; its training is "
        "synchronous (--mode sync)."
    )


def _add_predict_options(parser: _Parser) -> None:
    parser.add_argument(
        "--workers", type=values.numbers_of_workers, metavar="N,N...", help="numbers of workers (default: 1,2,4,8,16)"
    )
    network = parser.add_argument_group("what joins the workers")
    network.add_argument(
        "--bandwidth", metavar="RATE", help="of each host's link, each way: 10Gbit, 100Mbit; one worker a host"
    )
    network.add_argument("--latency", metavar="TIME", help="from host to host: 50us, 0.2ms (default: 0)")
    network.add_argument(
        "--queueing",
        metavar="TIME",
        help="that a request waits in a link which others keep busy: half of what the switch holds (default: 0)",
    )
    network.add_argument(
        "--overlap",
        type=values.part,
        metavar="X",
        help="what part of the ring's exchange is hidden behind computation, 0 to 1; see --calibrate (default: 0)",
    )
    network.add_argument(
        "--wire", metavar="FORM", help="how numbers travel from host to host: exact (default), or fp16"
    )
    parser.add_argument("--relax", metavar=RUNTIME_OPTIONS["relax"][0], help=RUNTIME_OPTIONS["relax"][1])
    network.add_argument(
        "--measure", action="store_true", help="all workers on this machine (default without --server)"
    )
    # Not the environment's: a prediction for numbers that are given needs no pool.
    _add_pool_options(network, None)
    parser.add_argument(
        "--batch",
        choices=("global", "per-worker"),
        help="what the script's batch_size means to the ring (default: global, split over the workers)",
    )
    parser.add_argument("--cost-per-hour", type=values.price, metavar="X", help="of a host; adds the cost of all steps")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured and predicted")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the speed-up (PNG, SVG or PDF)")
    parser.add_argument("--load", type=Path, metavar="FILE", help="use what --json wrote, in place of a script")
    parser.add_argument(
        "--calibrate",
        action="store_true",
        help="in place of SCRIPT expect reports of `fdt run --prediction FILE --report REPORT`; find the overlap and "
        "latency that fit them best",
    )
    parser.epilog = (
        "The script is run without training, and some of its steps are then measured on workers of this machine."
    )


def _add_compare_options(parser: _Parser) -> None:
    _add_pool_options(parser, None)
    parser.add_argument(
        "--workers", type=values.numbers_of_workers, metavar="N,N...", help="numbers of workers (default: 1,2)"
    )
    parser.add_argument(
        "--steps",
        type=values.num_steps,
        metavar="S",
        help="how many steps are measured in each form (default: as many as plain python makes in --seconds)",
    )
    parser.add_argument(
        "--repeat",
        type=values.num_steps,
        metavar="R",
        default=1,
        help="run every form R times, show medians (default: 1)",
    )
    parser.add_argument("--seconds", type=values.seconds, metavar="X", default=5.0, help="see --steps (default: 5)")
    parser.add_argument(
        "--prediction",
        type=Path,
        metavar="FILE",
        help="what `predict --json` wrote (default: what is predicted for this machine or pool)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        default=Path("fdt-comparison"),
        help="where the page, its data and its plots go (default: fdt-comparison)",
    )
    parser.epilog = (
        "The script is run once for each form, from its beginning, and ended after its last step that is measured: what it "
        "writes it writes each time. Exit status 0 if all forms ran."
    )


def _add_serve_options(parser: _Parser, modes: tuple[str, ...]) -> None:
    choices = (*modes, "both") if len(modes) > 1 else modes
    # No default: with --join it must be seen whether it was given.
    parser.add_argument("--mode", choices=choices, help=f"what the pool offers (default: {modes[0]})")
    parser.add_argument(
        "--workers",
        type=values.num_own_workers,
        metavar="N",
        help=f"how many of this machine's own (default: {DEFAULT_WORKERS}; 0: the hosts that join bring them)",
    )
    parser.add_argument("--listen", metavar="HOST:PORT", help=f"default: {DEFAULT_LISTEN}")
    _add_file(
        parser,
        "--token-file",
        "FDT_TOKEN_FILE",
        "shared secret that clients and hosts must know (default: on loopback one that the pool makes, and that this user's "
        "clients find)",
    )
    parser.add_argument("--no-token", action="store_true", help="on loopback: let every user of this machine in")
    parser.add_argument("--tls-cert", type=Path, metavar="FILE", help="certificate of the pool, PEM")
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="its private key, PEM")
    parser.add_argument(
        "--metrics", type=values.loopback, metavar="HOST:PORT", help="show figures there for Prometheus; loopback only"
    )
    parser.add_argument(
        "--no-walls",
        action="store_true",
        default=bool(os.environ.get(NO_WALLS)),
        help="for debugging: leave worker processes all rights of the user who runs them; `fdt doctor` tells which walls "
        f"stand otherwise (environment: {NO_WALLS})",
    )
    hosts = parser.add_argument_group("several hosts")
    hosts.add_argument(
        "--join",
        type=values.address,
        metavar="HOST:PORT",
        help="make this machine a host of the pool that is served there",
    )
    hosts.add_argument(
        "--slots", type=values.num_workers, metavar="N", help="with --join: how many workers this host offers"
    )
    hosts.add_argument(
        "--trusted-network",
        metavar="NETWORK",
        help="where workers of several hosts meet, in the clear: an interface of this machine, its address, or a CIDR; "
        "a pool without it takes no hosts",
    )
    hosts.add_argument(
        "--open-servers",
        action="store_true",
        help="let asynchronous jobs over several hosts open TensorFlow's servers on the machines' own networks: whoever "
        "reaches one runs code as the pool's user",
    )
    hosts.add_argument("--interface", metavar="ADDRESS", help="this machine's address there, if it has several")
    _add_file(hosts, "--tls-ca", "FDT_TLS_CA", "with --join: authority that signed the pool's certificate, PEM")


def _add_pool_options(parser: argparse._ActionsContainer, default: str | None) -> None:
    parser.add_argument(
        "--server",
        type=values.address,
        metavar="HOST:PORT",
        default=os.environ.get("FDT_SERVER") or default,
        help=f"pool to use (environment: FDT_SERVER; default: {default or 'one on this machine, for this run only'})",
    )
    _add_file(
        parser,
        "--token-file",
        "FDT_TOKEN_FILE",
        "shared secret of the pool (default: found, if the pool on this machine is this user's)",
    )
    _add_file(parser, "--tls-ca", "FDT_TLS_CA", "authority that signed the pool's certificate, PEM")


def _add_file(parser: argparse._ActionsContainer, flag: str, variable: str, summary: str) -> None:
    default = os.environ.get(variable) or None
    parser.add_argument(flag, type=Path, metavar="FILE", default=default, help=f"{summary} (environment: {variable})")


def _add_workers(parser: _Parser) -> None:
    parser.add_argument(
        "--workers",
        type=values.num_workers,
        metavar="N",
        default=DEFAULT_WORKERS,
        help=f"how many (default: {DEFAULT_WORKERS})",
    )
