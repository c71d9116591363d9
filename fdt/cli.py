"""The commands `fdt`, `hfdt` and `nfdt`.

This module imports next to nothing: each command imports what it needs when it runs, so that `--help` is quick and a
script meets as few modules of ours as can be.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from fdt import __version__

if TYPE_CHECKING:
    import grpc

    from fdt.config import Credentials, RunConfig, ServeConfig
    from fdt.session import Session
    from protos import pool_pb2

_FAILED = 125
_DEFAULT_LISTEN = "127.0.0.1:7077"
_WORDS = {"sync": "synchronous", "async": "asynchronous"}


def main(argv: Sequence[str] | None = None) -> int:
    """`fdt`.

    Args:
        argv: The command line after the program's name, `sys.argv[1:]` by default.

    Returns:
        The exit status. For a script that died of KeyboardInterrupt it raises one instead, see `fdt.script.finish`.
    """
    return _main("fdt", ("sync", "async"), argv)


def main_hfdt(argv: Sequence[str] | None = None) -> int:
    """`hfdt`: `fdt` with the synchronous mode only."""
    return _main("hfdt", ("sync",), argv)


def main_nfdt(argv: Sequence[str] | None = None) -> int:
    """`nfdt`: `fdt` with the asynchronous mode only."""
    return _main("nfdt", ("async",), argv)


def _main(program: str, modes: tuple[str, ...], argv: Sequence[str] | None) -> int:
    options = parse(program, modes, sys.argv[1:] if argv is None else argv)
    from fdt import script
    from fdt.errors import FdtError

    status: int
    try:
        status = options.command(options)
    except KeyboardInterrupt:
        status = script.INTERRUPTED
    except FdtError as error:
        _say(str(error))
        status = error.exit_status
    except Exception:
        sys.excepthook(*sys.exc_info())
        status = _FAILED
    return script.finish(status)


def _say(line: str) -> None:
    print(f"fdt: {line}", file=sys.stderr, flush=True)


# ---- the command line -----------------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """Errors read like all others of ours."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.format_usage()}fdt: {message}\n")


def parse(program: str, modes: tuple[str, ...], argv: Sequence[str]) -> argparse.Namespace:
    """Reads a command line; leaves as argparse does (SystemExit) when it is wrong or asks for help.

    Returns:
        The options; `command` is the function that carries them out.
    """
    parser, commands = build_parser(program, modes)
    ours, script, arguments = _split(commands["run"], argv)
    options = parser.parse_args(ours)
    if options.command is _run:
        _check_run(commands["run"], options, script)
        options.script, options.arguments = script, tuple(arguments)
    if options.command is _serve and (options.tls_cert is None) != (options.tls_key is None):
        commands["serve"].error("--tls-cert and --tls-key belong together: expected both or none")
    return options


def _check_run(parser: _Parser, options: argparse.Namespace, script: str | None) -> None:
    if script is None:
        parser.error("expected a SCRIPT to run")
    if options.scale_lr != "none" and options.batch != "per-worker":
        parser.error(
            "--scale-lr goes with --batch per-worker: with the global batch kept, the script's learning rate is right "
            f"as it is. Received: --scale-lr {options.scale_lr} --batch {options.batch}"
        )


def _split(run: _Parser, argv: Sequence[str]) -> tuple[list[str], str | None, list[str]]:
    """Parts a command line at SCRIPT, so that nothing after it is ever read as ours.

    Returns:
        What argparse is to read, the script if there is one, and its arguments.
    """
    argv = list(argv)
    if argv[:1] != ["run"]:
        return argv, None, []
    valued = {text for action in run._actions if action.nargs != 0 for text in action.option_strings}
    index = 1
    while index < len(argv) and argv[index].startswith("-") and argv[index] not in ("-", "--"):
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

    def add(name: str, command: Callable[[argparse.Namespace], int], summary: str, usage: str | None = None) -> _Parser:
        commands[name] = kinds.add_parser(name, help=summary, description=summary, allow_abbrev=False, usage=usage)
        commands[name].set_defaults(command=command)
        return commands[name]

    run_usage = f"{program} run [OPTIONS] SCRIPT [ARGS...]"
    _add_run_options(
        add("run", _run, "Run a script as python does; its training is distributed.", usage=run_usage), modes
    )
    _add_serve_options(add("serve", _serve, "Offer this machine's workers to others' runs: a pool."), modes)
    _add_pool_options(add("jobs", _jobs, "List the jobs of a pool."), _DEFAULT_LISTEN)
    for name, command, summary in (
        ("logs", _logs, "Print what a job's workers wrote."),
        ("cancel", _cancel, "Cancel a job."),
    ):
        _add_pool_options(add(name, command, summary), _DEFAULT_LISTEN)
        commands[name].add_argument("job", metavar="JOB", help="its name, as `jobs` shows it")
    _add_pool_options(add("doctor", _doctor, "Tell what works on this machine, and how to mend what does not."), None)
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
    parser.add_argument("--report", type=Path, metavar="FILE", help="write what happened to this file, as JSON")
    parser.epilog = "SCRIPT is a Python file (or a directory or zip file with a __main__.py); ARGS go to it untouched."


def _add_serve_options(parser: _Parser, modes: tuple[str, ...]) -> None:
    choices = (*modes, "both") if len(modes) > 1 else modes
    parser.add_argument("--mode", choices=choices, default=modes[0], help="what the pool offers")
    _add_workers(parser)
    parser.add_argument("--listen", metavar="HOST:PORT", default=_DEFAULT_LISTEN, help=f"default: {_DEFAULT_LISTEN}")
    _add_file(parser, "--token-file", "FDT_TOKEN_FILE", "shared secret that clients must know")
    parser.add_argument("--tls-cert", type=Path, metavar="FILE", help="certificate of the pool, PEM")
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="its private key, PEM")


def _add_pool_options(parser: _Parser, default: str | None) -> None:
    parser.add_argument(
        "--server",
        type=_address,
        metavar="HOST:PORT",
        default=os.environ.get("FDT_SERVER") or default,
        help=f"pool to use (environment: FDT_SERVER; default: {default or 'one on this machine, for this run only'})",
    )
    _add_file(parser, "--token-file", "FDT_TOKEN_FILE", "shared secret of the pool")
    _add_file(parser, "--tls-ca", "FDT_TLS_CA", "authority that signed the pool's certificate, PEM")


def _add_file(parser: _Parser, flag: str, variable: str, summary: str) -> None:
    default = os.environ.get(variable) or None
    parser.add_argument(flag, type=Path, metavar="FILE", default=default, help=f"{summary} (environment: {variable})")


def _add_workers(parser: _Parser) -> None:
    parser.add_argument("--workers", type=_num_workers, metavar="N", default=2, help="how many (default: 2)")


def _num_workers(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of workers, 1 or more. Received: {text}")
    return int(text)


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise argparse.ArgumentTypeError(f"expected HOST:PORT, such as 10.0.0.5:7077. Received: {text}")
    return text


# ---- from options to configuration ----------------------------------------------------------------------------------


def _require_launchers(modes: Sequence[str]) -> None:
    """Refuses a mode for which no runtime is installed."""
    from importlib.metadata import entry_points

    from fdt.errors import UsageError

    for mode in modes:
        if not entry_points(group="fdt.launchers", name=mode):
            raise UsageError(f"{_WORDS[mode]} mode is not in this version (--mode {mode})")


def _token(path: Path | None) -> str | None:
    from fdt.errors import UsageError

    if path is None:
        return None
    try:
        token = path.read_text(encoding="ascii").strip()
        open_to_others = path.stat().st_mode & 0o044
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the token file: {error}. Expected one line of ASCII in {path}") from error
    if not token or not token.isprintable():
        raise UsageError(f"the token file must hold one line of printable text. Received: {path}")
    if open_to_others:
        _say(f"warning: others on this machine can read the token; mend it with: chmod 600 {path}")
    return token


def _readable(path: Path | None, flag: str) -> Path | None:
    from fdt.errors import UsageError

    if path is not None and not (path.is_file() and os.access(path, os.R_OK)):
        raise UsageError(f"cannot read the file of {flag}. Received: {path}")
    return path


def _credentials(options: argparse.Namespace) -> "Credentials":
    from fdt.config import Credentials

    return Credentials(token=_token(options.token_file), tls_ca=_readable(options.tls_ca, "--tls-ca"))


def _run_config(options: argparse.Namespace) -> "RunConfig":
    from fdt.config import RunConfig
    from fdt.errors import UsageError

    _require_launchers([options.mode])
    report: Path | None = options.report
    if report is not None:
        # The script may change the directory before the report is written.
        report = report.absolute()
        if report.is_dir() or not os.access(report.parent, os.W_OK):
            raise UsageError(
                f"cannot write a report there: expected a file in a writable directory. Received: {report}"
            )
    return RunConfig(
        script=options.script,
        arguments=options.arguments,
        mode=options.mode,
        num_workers=options.workers,
        server=options.server,
        batch=options.batch,
        scale_lr=options.scale_lr,
        report=report,
        credentials=_credentials(options),
    )


def _serve_config(options: argparse.Namespace) -> "ServeConfig":
    from fdt.config import ServeConfig

    modes = ("sync", "async") if options.mode == "both" else (options.mode,)
    _require_launchers(modes)
    return ServeConfig(
        listen=options.listen,
        modes=modes,
        num_workers=options.workers,
        token=_token(options.token_file),
        tls_cert=_readable(options.tls_cert, "--tls-cert"),
        tls_key=_readable(options.tls_key, "--tls-key"),
    )


# ---- run ------------------------------------------------------------------------------------------------------------


def _run(options: argparse.Namespace) -> int:
    from fdt import script

    complaint = script.unreadable(options.script)
    if complaint is not None:
        print(complaint, file=sys.stderr)
        return 2
    return _run_in_session(_run_config(options))


def _run_in_session(config: "RunConfig") -> int:
    """Runs the script; the order in which things end is told in `fdt.script`."""
    import atexit
    import contextlib

    from fdt import capture, script
    from fdt.session import Session

    owner = os.getpid()
    with contextlib.ExitStack() as ending:
        session = ending.enter_context(Session(config))
        hooks = contextlib.ExitStack()
        hooks.enter_context(capture.hooks(session))
        # Registered before the script's handlers, so called after them: a `fit` in a thread or in a handler of the
        # script finds the hooks, and behind them a session that is closed. Without hooks it would train alone.
        atexit.register(hooks.close)
        status = script.run(config.script, config.arguments)
        if os.getpid() != owner:
            # A child that the script forked has run to the end of the script. The session is its parent's.
            ending.pop_all()
            return status
        return _end(session, config, status)


def _end(session: "Session", config: "RunConfig", status: int) -> int:
    from fdt.errors import FdtError
    from fdt.script import INTERRUPTED

    shown = 130 if status == INTERRUPTED else status
    if not session.distributed and status not in (INTERRUPTED, _FAILED):
        _say(f"no training step was found in {config.script}; nothing was distributed")
    try:
        session.close(shown)
        session.write_report(shown)
    except (FdtError, OSError) as error:
        _say(str(error))
        return status or _FAILED
    return status


# ---- serve ----------------------------------------------------------------------------------------------------------


class _Stopped(BaseException):
    """SIGINT or SIGTERM."""


def _serve(options: argparse.Namespace) -> int:
    import signal

    config = _serve_config(options)
    from fdt.server import Server

    def stop(*_: object) -> NoReturn:
        # Once is enough: stopping has its own limits, and half a stop would leave workers behind.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        raise _Stopped

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    server = Server(config)
    try:
        address = server.start()
        workers = f"{config.num_workers} worker{'s' if config.num_workers > 1 else ''}"
        print(f"fdt: pool at {address}, {workers}, mode {options.mode}", flush=True)
        server.wait()
    except _Stopped:
        pass
    finally:
        server.stop()
    return 0


# ---- jobs, logs, cancel ---------------------------------------------------------------------------------------------


def _connect(options: argparse.Namespace) -> "grpc.Channel":
    from fdt import rpc
    from fdt.config import Timing

    return rpc.connect(options.server, _credentials(options), Timing())


def _jobs(options: argparse.Namespace) -> int:
    import time

    from fdt import rpc
    from fdt.config import Timing
    from protos import pool_pb2, pool_pb2_grpc

    with _connect(options) as channel, rpc.translated():
        reply = pool_pb2_grpc.PoolStub(channel).ListJobs(pool_pb2.ListJobsRequest(), timeout=Timing().call_s)
    print("\n".join(format_jobs(reply.jobs, time.time())) if reply.jobs else "no jobs")
    return 0


def format_jobs(jobs: "Sequence[pool_pb2.JobSummary]", now_s: float) -> list[str]:
    """Lays jobs out as a table, one line each below a heading.

    Args:
        jobs: In the order in which to show them.
        now_s: Seconds since the epoch, for jobs that have not ended.
    """
    rows: list[tuple[str, ...]] = [("JOB", "STATE", "MODE", "WORKERS", "STEPS", "TIME", "SCRIPT", "REASON")]
    for job in jobs:
        lasted = _duration(max(0.0, (job.ended_s or now_s) - job.submitted_s))
        numbers = (str(job.num_workers), f"{job.steps:,}", lasted)
        # One line each, whatever a script's name or a reason holds.
        texts = [" ".join(text.split()) for text in (job.job, job.state, job.mode, job.script, job.reason)]
        rows.append((*texts[:3], *numbers, *texts[3:]))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(_align(cell, widths[i], right=i in (3, 4, 5)) for i, cell in enumerate(r)).rstrip() for r in rows]


def _align(text: str, width: int, *, right: bool) -> str:
    return text.rjust(width) if right else text.ljust(width)


def _duration(seconds: float) -> str:
    minutes, rest_s = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h {minutes:02}m"
    return f"{minutes}m {rest_s:02}s" if minutes else f"{rest_s}s"


def _logs(options: argparse.Namespace) -> int:
    from fdt import rpc
    from fdt.config import Timing
    from protos import pool_pb2, pool_pb2_grpc

    with _connect(options) as channel, rpc.translated():
        stub = pool_pb2_grpc.PoolStub(channel)
        try:
            for chunk in stub.GetLogs(pool_pb2.GetLogsRequest(job=options.job), timeout=10 * Timing().chunk_s):
                sys.stdout.buffer.write(chunk.text)
            sys.stdout.flush()
        except BrokenPipeError:
            # `fdt logs JOB | head`: enough was read. Nothing may be flushed at the end any more.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _cancel(options: argparse.Namespace) -> int:
    from fdt import rpc
    from fdt.config import Timing
    from protos import pool_pb2, pool_pb2_grpc

    with _connect(options) as channel, rpc.translated():
        stub = pool_pb2_grpc.PoolStub(channel)
        reply = stub.CancelJob(pool_pb2.CancelJobRequest(job=options.job), timeout=Timing().call_s)
    print(f"{options.job}: {reply.state}")
    return 0


# ---- doctor ---------------------------------------------------------------------------------------------------------

# Each is run by a python of its own: a broken library may end the process, and a working one is slow to import.
_PROBES: dict[str, tuple[str, str]] = {
    "tensorflow": ("import tensorflow as m; print(m.__version__)", "pip install 'tensorflow>=2.16'"),
    "keras": (
        "import keras as m; assert m.__version__ >= '3', m.__version__ + ' is too old'; print(m.__version__)",
        "pip install 'keras>=3'; and unset TF_USE_LEGACY_KERAS",
    ),
    "grpc": ("import grpc as m; print(m.__version__)", "pip install 'grpcio>=1.71'"),
    "protobuf": ("import google.protobuf as m, protos.job_pb2; print(m.__version__)", "pip install 'protobuf>=5.29'"),
    "horovod": (
        "import horovod, horovod.tensorflow as m; assert m.gloo_built(), 'built without gloo';"
        + "print(horovod.__version__, 'with tensorflow, gloo' + (', nccl' if m.nccl_built() else ', without nccl'))",
        "make install (it builds Horovod against the TensorFlow of this environment), or name a pool with --server",
    ),
}
_PROBE_LIMIT_S = 120.0


def _doctor(options: argparse.Namespace) -> int:
    import platform

    print(f"{'':7}fdt         {__version__}")
    print(f"{'':7}python      {platform.python_version()}  {sys.executable}")
    print(f"{'':7}machine     {_machine()}")
    print(f"{'':7}gpu         {_gpus()}")
    broken = 0
    for name in _PROBES:
        needed = name != "horovod" or options.server is None
        found, remedy = _probe(name)
        broken += _tell(name, found, remedy, needed)
    for mode, word in _WORDS.items():
        _tell(word, *_probe_mode(mode), needed=False)
    if options.server is not None:
        broken += _tell("pool", *_probe_pool(options), needed=True)
    return 1 if broken else 0


def _tell(name: str, found: str, remedy: str | None, needed: bool) -> bool:
    """Prints one line, and the remedy if there is one; returns whether something needed is broken."""
    sign = "ok" if remedy is None else "BROKEN" if needed else "-"
    print(f"{sign:7}{name:11} {found}", flush=True)
    if remedy:
        print(f"{'':19}remedy: {remedy}", flush=True)
    return remedy is not None and needed


def _probe(name: str) -> tuple[str, str | None]:
    import subprocess

    code, remedy = _PROBES[name]
    quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=_PROBE_LIMIT_S, env=quiet, check=False
        )
    except subprocess.TimeoutExpired:
        return f"did not import within {_PROBE_LIMIT_S:.0f} s", remedy
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    last = lines[-1] if lines else f"exit status {done.returncode}"
    return last, None if done.returncode == 0 else remedy


def _probe_mode(mode: str) -> tuple[str, str | None]:
    from importlib.metadata import entry_points

    found = list(entry_points(group="fdt.launchers", name=mode))
    return (found[0].value, None) if found else ("not in this version", "")


def _probe_pool(options: argparse.Namespace) -> tuple[str, str | None]:
    from fdt import rpc
    from fdt.config import Timing
    from fdt.errors import FdtError
    from fdt.versions import versions
    from protos import pool_pb2, pool_pb2_grpc

    try:
        with _connect(options) as channel, rpc.translated():
            request = pool_pb2.DescribeRequest(versions=versions())
            pool = pool_pb2_grpc.PoolStub(channel).Describe(request, timeout=Timing().call_s)
    except FdtError as error:
        return f"{options.server}: {type(error).__name__}", str(error)
    return (f"{options.server}: {pool.num_free} of {pool.num_workers} workers free, {', '.join(pool.modes)}", None)


def _machine() -> str:
    cores = len(os.sched_getaffinity(0))
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"{cores} cores, {memory_bytes / 2**30:.1f} GiB memory"


def _gpus() -> str:
    import shutil
    import subprocess

    command = shutil.which("nvidia-smi")
    if command is None:
        return "none (no nvidia-smi)"
    try:
        done = subprocess.run([command, "-L"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"unknown: {error}"
    return "; ".join(done.stdout.strip().splitlines()) or "none"
