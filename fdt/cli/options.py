"""Defines the options of every command, one dataclass field for each.

The command line (`fdt.cli.command_line`), the environment and configuration files (`fdt.cli.sources`), `--help`, `fdt config`
and shell completion are derived from these classes.

A field gives the option its name: `stop_after` is `--stop-after`, `FDT_STOP_AFTER` and `stop-after = ...`. Options that several
commands share have a class of their own. Only the standard library is imported, so that `--help` is quick.
"""
# The fields are made by functions of `option_fields`.
# ruff: noqa: RUF009

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from fdt.cli import option_values
from fdt.cli.option_fields import Options, described, of_runtime, option, switch, training_option

# The modes' names in messages.
MODES = {"sync": "synchronous", "async": "asynchronous"}

DEFAULT_LISTEN = "127.0.0.1:7077"
DEFAULT_WORKERS = 2
DEFAULT_GRACE_S = 30.0
# The least and the most hosts from a scheduler.
DEFAULT_HOSTS = (0, 8)

_SEVERAL_HOSTS = "several hosts"
_SCHEDULER = "hosts that a cluster's scheduler brings"
_NETWORK = "the network between workers"


# fmt: off
@dataclass
class OfScript(Options):
    """Commands that run a script; its name and arguments follow all options."""

    script: Any = None
    arguments: tuple[str, ...] = ()
    # Whether `script` is the name of a module, as after `python -m`.
    module: bool = False


@dataclass
class OfPool(Options):
    """The pool to use, and the client's credentials for it."""

    server: str | None = option(None, "pool to use (default: one on this machine, for this run only)", "HOST:PORT",
        option_values.address)
    token_file: Path | None = option(None, "shared secret of the pool (default: found, if this user serves the pool, on "
        "this machine)", "FILE", Path)
    tls_ca: Path | None = option(None, "authority that signed the pool's certificate, PEM (default: those that this system "
        "trusts; on loopback no TLS)", "FILE", Path)


@dataclass
class OfRunningPool(OfPool):
    """The options of `OfPool` for commands that always need a running pool."""

    server: str = option(DEFAULT_LISTEN, f"pool to use (default: {DEFAULT_LISTEN})", "HOST:PORT", option_values.address)


@dataclass
class OfWorkers(Options):
    """The number of workers."""

    workers: Any = training_option(DEFAULT_WORKERS, f"how many (default: {DEFAULT_WORKERS})", "N", option_values.num_workers)


@dataclass
class OfMode(Options):
    """The mode of training."""

    mode: str = training_option(None, "sync: all-reduce; async: parameter server", choices=tuple(MODES))


@dataclass
class OfElse(Options):
    """What to do with eager steps that cannot be outlined."""

    otherwise: str = training_option("refuse", "steps of eager loops that cannot be outlined are refused, or run on this "
        "machine (default: refuse)", choices=("refuse", "local"), name="else")


@dataclass
class OfRuntime(Options):
    """The options that a runtime reads, by their names in a job."""

    wire: str | None = of_runtime("FORM", "how parameters and gradients travel: exact, or fp16, rounded to half their "
        "bytes (default: exact)", "")
    relax: str | None = of_runtime("WHAT", "what each worker may compute from its own rows alone, for speed: batch-norm "
        "(moments), random (numbers of its own), or both with a comma (default: nothing)", "")
    variables: str | None = of_runtime("FORM", "what each synchronous worker holds: whole, all variables; parts, a part of "
        "each large variable that is updated; auto, a part of each table whose rows are looked up, and of all "
        "where the whole does not fit into a worker's memory (default: auto)", "")
    ps: str | None = of_runtime("K", "parameter servers that share the model (default: 1)")
    ps_place: str | None = of_runtime("WHERE", "where they are if a job is on several hosts: hosts, beside the "
        "workers, or pool, on the pool's own machine (default: hosts)")
    update: str | None = of_runtime("RULE", "what a parameter server does with a delayed gradient: asgd, "
        "dc-asgd-c, dc-asgd-a, dc-asgdk, ddc-asgd, dynsgd; or averaging of weights (default: ddc-asgd)")
    ddc: str | None = of_runtime("FORM", "of ddc-asgd: robust or thesis (default: robust)")
    lambda0: str | None = of_runtime("X", "strength of the compensation of delays")
    q: str | None = of_runtime("X", "delay at which a gradient counts half")
    max_delay: str | None = of_runtime("S", "how many steps a worker may be ahead of the slowest (default: 2 on one "
        "host, else any)")
    average_every: str | None = of_runtime("H", "steps of each worker between two averages, with --update averaging "
        "(default: 1)")
    outer: str | None = of_runtime("METHOD", "what is done with the average: averaging or diloco")


def _bound(what: str, default: str) -> Any:
    summary = f"how much {what} each worker process may use, such as 4GB; one that uses more is ended, and its job with it"
    return option(None, f"{summary} (default: {default})", "SIZE", option_values.size)


@dataclass
class OfBounds(Options):
    """The bounds of each worker process."""

    memory: int | None = _bound("memory", "nine tenths of the machine's")
    disk: int | None = _bound("disk in its own folder", "what the machine has")


@dataclass
class OfFit(Options):
    """What each worker would have."""

    memory: int | None = option(None, "whether variables fit into so much memory of each worker, such as 16GB (default: "
        "check takes each worker's share of this machine)", "SIZE", option_values.size)


@dataclass
class OfAdmission(Options):
    """Additional operations that programs may contain."""

    admit: tuple[str, ...] = option((), "operations of TensorFlow that steps may hold besides the usual ones, "
        "for clients that you trust: nobody has checked their safety with hostile input; may be given several times",
        "OP,OP...", is_repeated=True)


@dataclass
class OfScheduler(Options):
    """The hosts to request from a scheduler."""

    on: str | None = option(None, "ask this scheduler for hosts: slurm, ray; with --dry-run also kubernetes", "NAME",
        group=_SCHEDULER)
    gpus: int | None = option(None, "GPUs of each host (default: none)", "N", option_values.num_workers, group=_SCHEDULER)
    shared_folder: Path | None = option(None, "folder for the hosts' token, certificate and logs, on a file system that "
        "all of them share (default: ~/.local/state/fdt)", "DIR", Path, group=_SCHEDULER)
    dry_run: bool = switch("print files and commands, and request nothing", group=_SCHEDULER)
    slots: int | None = option(None, "workers of each host (default: one a GPU, or one)", "N", option_values.num_workers,
        group=_SCHEDULER)
    trusted_network: str | None = option(None, "network over which workers of several hosts exchange data, in the "
        "clear: a CIDR, such as 10.0.0.0/16", "NETWORK", group=_SCHEDULER)
    interface: str | None = option(None, "this machine's address on the trusted network, if it has several", "ADDRESS",
        group=_SCHEDULER)


@dataclass
class Run(OfScheduler, OfBounds, OfAdmission, OfRuntime, OfElse, OfMode, OfPool, OfScript):
    """Run a script as python does; its training is distributed."""

    epilog: ClassVar[str | None] = ("SCRIPT is a Python file, a notebook, or a directory or zip file with a __main__.py; ARGS "
        "go to it untouched.")
    workers: tuple[int, int] = training_option((DEFAULT_WORKERS, DEFAULT_WORKERS), f"how many (default: {DEFAULT_WORKERS}); "
        "with a range: start with the free ones, at least MIN, use up to MAX as more come free, and continue with "
        "fewer if some are lost", "N|MIN..MAX", option_values.range_of_workers)
    reconnect: float | None = training_option(None, "seconds to wait for a lost pool to come back, or for workers to replace "
        "lost ones (default: 120; 0: fail at once)", "S", option_values.wait)
    batch: str = training_option("global", "what the script's batch_size means (default: global, split over the workers)",
        choices=("global", "per-worker"))
    scale_lr: str = training_option("none", "scale the learning rate with the workers, with --batch per-worker",
        choices=("none", "linear", "sqrt"))
    detach: bool = switch("run without this terminal, which may be closed; `attach` shows what the script prints",
        is_typed=True)
    data_map: tuple[str, ...] = option((), "folder of data sets here, and its name where the pool's workers read it; may be "
        "given several times", "HERE=THERE", is_repeated=True)
    report: Path | None = option(None, "write a report of the run to this file, as JSON", "FILE", Path)
    stop_after: int | None = training_option(None, "end the script after S training steps", "S", option_values.num_steps)
    warm_up: int | None = training_option(None, "leave the first W training steps out of the report", "W",
        option_values.num_steps)
    tensorboard: Path | None = option(None, "write what the workers used (cores, memory, network) for TensorBoard",
        "DIR", Path)
    prediction: Path | None = option(None, "what `predict --json` wrote; the report compares it with the run", "FILE",
        Path)
    scheduler_args: tuple[str, ...] = option((), "argument for the scheduler; may be given several times: "
        "--scheduler-arg=--partition=gpu", "ARG", name="scheduler-arg", is_repeated=True, group=_SCHEDULER)
    # The whole command line, for `--detach`.
    command_line: tuple[str, ...] = ()


@dataclass
class Check(OfFit, OfAdmission, OfRuntime, OfElse, OfWorkers, OfMode, OfScript):
    """Tell which steps of a script would be distributed, without training."""

    epilog: ClassVar[str | None] = ("Exit status 0 if there is training and all of it can be distributed. No pool is "
        "needed.")


@dataclass
class Verify(OfWorkers, OfPool, OfScript):
    """Run a script's first training steps here and on a pool, and compare all variables."""

    epilog: ClassVar[str | None] = ("Exit status 0 if all steps agree, 1 if one differs, 3 if a difference may be "
        "more than rounding. The script ends after the last step that is compared; its training is synchronous.")
    steps: int = training_option(10, "how many steps are compared (default: 10)", "S", option_values.num_steps)
    tolerance: float = option(0.0001, "the largest difference that counts as rounding, relative to what a step changes "
        "(default: 1e-4)", "X",
        option_values.tolerance)


@dataclass
class Predict(OfFit, OfPool, OfScript):
    """Predict how fast a script would be on more workers, and which form of training to choose."""

    epilog: ClassVar[str | None] = ("The script is run without training, and some of its steps are then measured on "
        "workers of this machine.")
    workers: tuple[int, ...] | None = training_option(None, "numbers of workers (default: 1,2,4,8,16)", "N,N...",
        option_values.numbers_of_workers)
    bandwidth: str | None = option(None, "of each host's link, each way: 10Gbit, 100Mbit; one worker a host", "RATE",
        group=_NETWORK)
    hosts: int | None = option(None, "hosts of the cluster; needs --bandwidth", "N", option_values.num_workers, group=_NETWORK)
    gpus_per_host: int | None = option(None, "GPUs of each host, one worker each; they share its link", "N",
        option_values.num_workers, group=_NETWORK)
    latency: str | None = option(None, "from host to host: 50us, 0.2ms (default: 0)", "TIME", group=_NETWORK)
    queueing: str | None = option(None, "time that a request waits in a link which others keep busy: half of what "
        "the switch buffers (default: 0)", "TIME", group=_NETWORK)
    overlap: float | None = option(None, "which part of the ring's exchange overlaps with computation, 0 to 1; see "
        "--calibrate (default: 0.45)", "X", option_values.part, group=_NETWORK)
    wire: str | None = training_option(None, "how numbers travel from host to host: exact (default), or fp16", "FORM",
        group=_NETWORK)
    measure: bool = switch("all workers on this machine (default without --server)", group=_NETWORK)
    relax: str | None = dataclasses.field(default=None, metadata=OfRuntime.__dataclass_fields__["relax"].metadata)
    batch: str | None = training_option(None, "what the script's batch_size means to the ring (default: global, split over the "
        "workers)", choices=("global", "per-worker"))
    cost_per_hour: float | None = option(None, "of a host; adds the cost of all steps", "X", option_values.price)
    json: Path | None = option(None, "write what was measured and predicted", "FILE", Path)
    plot: Path | None = option(None, "draw the speed-up (PNG, SVG or PDF)", "FILE", Path)
    load: Path | None = option(None, "use what --json wrote, in place of a script", "FILE", Path)
    calibrate: bool = switch("in place of SCRIPT take reports of `fdt run --prediction FILE --report REPORT`; print "
        "the overlap and latency that fit them best")


@dataclass
class Compare(OfPool, OfScript):
    """Run a script's first training steps in every form, and show them side by side."""

    epilog: ClassVar[str | None] = ("The script is run once for each form, from its beginning to its last measured "
        "step, so it writes its files each time. Exit status 0 if all forms ran.")
    workers: tuple[int, ...] | None = training_option(None, "numbers of workers (default: 1,2)", "N,N...",
        option_values.numbers_of_workers)
    steps: int | None = training_option(None, "how many steps are measured in each form (default: as many as plain python "
        "makes in --seconds)", "S", option_values.num_steps)
    repeat: int = training_option(1, "run every form R times, show medians (default: 1)", "R", option_values.num_steps)
    seconds: float = training_option(5.0, "see --steps (default: 5)", "X", option_values.seconds)
    prediction: Path | None = option(None, "what `predict --json` wrote (default: what is predicted for this machine "
        "or pool)", "FILE", Path)
    out: Path = option(Path("fdt-comparison"), "where the page, its data and its plots go (default: fdt-comparison)",
        "DIR", Path)


_TOKENS = "tokens of persons, as `fdt token` writes them (default: tokens.json in the state folder)"
_STATE = ("folder in which the pool keeps its list of jobs, tokens and audit log from one start to the next "
    "(default: one for this address in the user's state folder)")


@dataclass
class Serve(OfScheduler, OfBounds, OfAdmission):
    """Offer this machine's workers to others' runs: a pool."""

    epilog: ClassVar[str | None] = ("With --on, arguments after -- go to the scheduler: fdt serve --on slurm ... "
        "-- --partition=gpu")
    # No default, since with --join it must be known whether it was given.
    mode: Any = option(None, "what the pool offers (default: the first of these)", choices=(*MODES, "both"))
    workers: int | None = option(None, f"workers of this machine (default: {DEFAULT_WORKERS}; 0: only hosts that join have "
        "workers)", "N", option_values.num_own_workers)
    listen: str | None = option(None, f"address to listen on (default: {DEFAULT_LISTEN})", "HOST:PORT")
    token_file: Path | None = option(None, "shared secret of clients and hosts (default: on loopback the pool makes "
        "one, which this user's clients find)", "FILE", Path)
    no_token: bool = switch("on loopback: give every user of this machine access")
    tokens: Path | None = option(None, _TOKENS, "FILE", Path)
    share: bool = switch("let persons with tokens of their own see, use and cancel what others have sent, too")
    audit_log: Path | None = option(None, "log of calls and refusals with their callers, one JSON object a line, at most "
        "40 MiB (default: audit.log in the state folder)", "FILE", Path)
    tls_cert: Path | None = option(None, "certificate of the pool, PEM", "FILE", Path)
    tls_key: Path | None = option(None, "its private key, PEM", "FILE", Path)
    log_level: str | None = option(None, "least level that is logged on standard error, with times; info has jobs, workers and "
        "hosts (default: lines for a person, without times)", choices=("debug", "info", "notice", "warning", "error"))
    log_json: bool = switch("log JSON, one object a line")
    metrics: str | None = option(None, "address of the metrics for Prometheus; loopback only", "HOST:PORT",
        option_values.loopback)
    page: str | None = option(None, "address of a page with jobs, workers and curves, for a browser that has a link with a "
        "code; loopback only", "HOST:PORT", option_values.loopback)
    record_events: Path | None = option(None, "for a report of a defect: write the events of jobs, workers and hosts, and the "
        "pool's reactions, to a new file of at most 64 MiB; it has names of scripts and error messages", "FILE", Path)
    data: tuple[str, ...] = option((), "folder of data sets: workers read files in it that the client has under the same "
        "names, too; may be given several times", "DIR", is_repeated=True)
    no_walls: bool = switch("for debugging: leave worker processes all rights of the user who runs them; `fdt doctor` "
        "shows which walls they have otherwise")
    limit: tuple[str, ...] | None = option(None, "change a bound on what clients and hosts may use of the pool, such as "
        "hosts=1000; an unknown name shows all bounds; may be given several times", "NAME=N", is_repeated=True)
    state: Path | None = option(None, _STATE, "DIR", Path)
    grace: float | None = option(None, "seconds after SIGTERM for running jobs to take a snapshot, from which they go on when "
        f"the pool is back (default: {DEFAULT_GRACE_S:g})", "S", option_values.wait)
    join: str | None = option(None, "make this machine a host of the pool that is served there", "HOST:PORT",
        option_values.address, group=_SEVERAL_HOSTS)
    slots: int | None = option(None, "with --join: how many workers this host offers; with --on: how many each "
        "(default: one a GPU, or one)", "N", option_values.num_workers, group=_SEVERAL_HOSTS)
    name: str | None = option(None, "with --join: what this host is called (default: the machine's name)", "NAME",
        option_values.host_name, group=_SEVERAL_HOSTS)
    join_token_file: Path | None = option(None, "secret for hosts only, the same on both sides: a host that has it may join "
        "and gets programs and data; the clients' token then admits no host (default: the clients' token admits hosts)",
        "FILE", Path, group=_SEVERAL_HOSTS)
    trusted_network: str | None = option(None, "network over which workers of several hosts exchange data, in the "
        "clear: an interface of this machine, its address, or a CIDR; a pool without it accepts no hosts", "NETWORK",
        group=_SEVERAL_HOSTS)
    open_servers: bool = switch("let asynchronous jobs over several hosts open TensorFlow's servers on the machines' "
        "own networks: anyone who reaches one can run code as the pool's user", group=_SEVERAL_HOSTS)
    tls_ca: Path | None = option(None, "with --join or --on: authority that signed the pool's certificate, PEM "
        "(default with --on: the certificate itself)", "FILE", Path, group=_SEVERAL_HOSTS)
    hosts: tuple[int, int] | None = option(None, "hosts at the same time, as jobs need them (default: 0..8)", "MIN..MAX",
        option_values.range_of_hosts, group=_SCHEDULER)
    idle: float | None = option(None, "give a host back after S seconds without work (default: 300)", "S",
        option_values.seconds, group=_SCHEDULER)
    # The arguments after "--".
    scheduler_args: tuple[str, ...] = ()


@dataclass
class Jobs(OfRunningPool):
    """List the jobs of a pool."""



@dataclass
class Logs(OfRunningPool):
    """Print what a job's workers wrote."""

    job: str = option("", "its name, as `jobs` shows it", "JOB", is_positional=True)


@dataclass
class Cancel(Logs):
    """Cancel a job."""



@dataclass
class Attach(Options):
    """Show what a run prints that was started with `run --detach`, until it ends."""

    epilog: ClassVar[str | None] = ("The exit status is the script's. Ctrl-C leaves the script running.")
    job: str = option("", "its name, as `jobs` shows it", "RUN", is_positional=True)
    tail: int | None = option(None, "begin with the last N lines (default: all)", "N", option_values.num_steps)


@dataclass
class Page(OfRunningPool):
    """Print a link to a pool's page; it opens the page for one browser, once."""


@dataclass
class Token(Options):
    """Make, list and revoke tokens of the persons who use a pool, on the machine that serves it."""

    epilog: ClassVar[str | None] = ("The token is printed once, for that person's --token-file. A running pool accepts a new "
        "token, and refuses a revoked one, without a restart.")
    action: str = option("", "make a token, list who has one, or revoke one and cancel the jobs that were started with it",
        choices=("add", "list", "revoke"), is_positional=True)
    name: str | None = option(None, "the person", "NAME", is_positional=True, is_left_away=True)
    expires: float | None = option(None, "with add: for how long it is valid, such as 30d or 12h (default: for ever)", "TIME",
        option_values.period, is_typed=True)
    listen: str | None = option(None, f"where the pool listens (default: {DEFAULT_LISTEN})", "HOST:PORT")
    state: Path | None = option(None, _STATE, "DIR", Path)
    tokens: Path | None = option(None, _TOKENS, "FILE", Path)


@dataclass
class Top(OfRunningPool):
    """Show a pool's jobs and hosts, redrawn regularly."""

    interval: float = option(2.0, "seconds between two updates (default: 2)", "S", option_values.seconds)


@dataclass
class Doctor(OfPool):
    """Tell what works on this machine, and how to fix what does not."""



@dataclass
class Setup(Options):
    """Put what is compiled into this Python's environment: Horovod, for the TensorFlow that is there, and our operations."""

    epilog: ClassVar[str | None] = ("Needs g++, make and some minutes; a second environment takes what the first has built. "
        "Synchronous training on several workers needs it on a pool's machines; clients do not.")
    rebuild: bool = switch("build even if a working Horovod is installed")
    wheel: Path | None = option(None, "write wheels for hosts without a compiler, and install nothing", "DIR", Path)


@dataclass
class Config(Options):
    """Show which options are set in the environment and in configuration files, and where."""

    of: str = option("", "show the options of this command only, with its defaults", "COMMAND", is_positional=True,
        is_left_away=True)


@dataclass
class Completion(Options):
    """Print a file that makes a shell complete the commands and options of fdt."""

    shell: str = option("", "the shell", choices=("bash", "zsh", "tcsh"), is_positional=True)
# fmt: on


COMMANDS: dict[str, type[Options]] = {
    kind.__name__.lower(): kind
    for kind in (
        Run, Check, Verify, Predict, Compare, Serve, Token, Jobs, Logs, Cancel, Page, Top, Attach, Doctor, Setup, Config,
        Completion,
    )
}  # fmt: skip
RUNTIME_OPTIONS = tuple(name for _, name, _, about in described(OfRuntime) if about.for_runtime)
