"""Runs the commands `fdt`, `hfdt` and `nfdt`: parses the command line, calls the command, returns its exit status.

This module imports almost nothing: each command imports what it needs when it runs, so that `--help` is quick and a
script's process contains as few modules of FDT as possible.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fdt.base import interpreter
from fdt.cli.command_line import misplaced, parse
from fdt.cli.options import MODES, Check, Compare, Completion, Config, OfScript, Predict, Run, Serve, Verify
from fdt.cli.settings import (
    check_config,
    join_config,
    makes_token,
    offered,
    run_config,
    runtime_options,
    serve_config,
    state_folder,
    verify_config,
)

if TYPE_CHECKING:
    import contextlib

    from fdt.base.config import RunConfig, ServeConfig
    from fdt.client.conclusion import Conclusion
    from fdt.client.session import Session
    from fdt.pool.server import Server
    from fdt.pool.state_folder import StateFolder

_FAILED = 125
# Commands that run no script, and import gRPC.
_SPEAKS_TO_A_POOL = ("jobs", "logs", "cancel", "page", "top")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command `fdt`.

    Args:
        argv: The command line after the program's name, `sys.argv[1:]` by default.

    Returns:
        The exit status. If the script ended with KeyboardInterrupt, raises one instead; see `fdt.script.runner.finish`.
    """
    return _main("fdt", ("sync", "async"), argv)


def main_hfdt(argv: Sequence[str] | None = None) -> int:
    """Runs the command `hfdt`: `fdt` with the synchronous mode only."""
    return _main("hfdt", ("sync",), argv)


def main_nfdt(argv: Sequence[str] | None = None) -> int:
    """Runs the command `nfdt`: `fdt` with the asynchronous mode only."""
    return _main("nfdt", ("async",), argv)


def _main(program: str, modes: tuple[str, ...], argv: Sequence[str] | None) -> int:
    command_line = sys.argv[1:] if argv is None else argv
    options = parse(program, modes, command_line)
    if options.command == "serve":
        # grpc reads this when it is imported. Otherwise it logs a port in use itself; see `fdt.transport.rpc.listen`.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from fdt.errors import FdtError
    from fdt.script import runner

    status: int
    try:
        status = _command(options.command)(options)
    except KeyboardInterrupt:
        status = runner.INTERRUPTED
    except FdtError as error:
        _say(str(error))
        status = error.exit_status
    except Exception:
        sys.excepthook(*sys.exc_info())
        status = _FAILED
    return runner.finish(status)


def _command(name: str) -> Callable[[Any], int]:
    if name in _SPEAKS_TO_A_POOL:
        from fdt.base.quiet_grpc import import_grpc

        import_grpc()
    if name == "run":
        return _run
    if name == "verify":
        return _verify
    if name == "check":
        return _check
    if name == "serve":
        return _serve
    if name == "predict":
        return _predict
    if name == "compare":
        return _compare
    if name == "doctor":
        from fdt.cli.doctor import doctor

        return doctor
    if name == "setup":
        from fdt.cli.setup import setup

        return setup
    if name == "token":
        from fdt.cli.person_tokens import token

        return token
    if name == "top":
        from fdt.cli.top import top

        return top
    if name == "config":
        return _config
    if name == "completion":
        return _completion
    from fdt.cli import pool_commands

    commands: dict[str, Callable[[Any], int]] = {
        "jobs": pool_commands.jobs,
        "logs": pool_commands.logs,
        "cancel": pool_commands.cancel,
        "attach": pool_commands.attach,
        "page": pool_commands.page,
    }
    return commands[name]


def _say(line: str) -> None:
    from fdt.base.printable import printable_lines

    print(f"fdt: {printable_lines(line)}", file=sys.stderr, flush=True)


def require_launchers(modes: Sequence[str]) -> None:
    """Refuses a mode for which no runtime is installed."""
    from importlib.metadata import entry_points

    from fdt.errors import UsageError

    for mode in modes:
        if not entry_points(group="fdt.launchers", name=mode):
            raise UsageError(
                f"no runtime for {MODES[mode]} mode is installed (--mode {mode}). Install this package again: `pip install .` "
                "registers its runtimes"
            )


def check_options(mode: str, options: Mapping[str, str]) -> None:
    """Has the runtime check its options; imports the runtime only if there are some."""
    if options:
        from fdt.worker.runtime import find_launchers

        find_launchers((mode,))[mode].check(options)


# ---- run ------------------------------------------------------------------------------------------------------------


def _run(options: Run) -> int:
    if not _readable(options):
        return 2
    require_launchers([options.mode])
    check_options(options.mode, runtime_options(options))
    config = run_config(options)
    if options.dry_run and config.placing is not None and config.network is not None:
        from fdt.pool.scheduling.preflight import show

        print(show(config.placing, config.network, f"{config.network.address}:PORT"))
        return 0
    return _detach(config, options.command_line) if options.detach else _run_in_session(config)


def _detach(config: "RunConfig", command_line: Sequence[str]) -> int:
    """Starts the same command again, detached from this terminal."""
    from fdt.cli import detached

    rest = list(command_line)
    # Removes the first occurrence, since options of FDT come before the script's.
    rest.remove("--detach")
    # A Python command whose output is not buffered.
    python = interpreter.again(len(command_line))
    run = detached.start([*python, *rest], config.script, config.mode, config.num_workers)
    print(run.name, flush=True)
    _say(
        f"it runs without this terminal: `fdt attach {run.name}` shows what it prints, `fdt cancel {run.name}` ends it"
    )
    return 0


def _verify(options: Verify) -> int:
    if not _readable(options):
        return 2
    require_launchers(["sync"])
    import contextlib
    import dataclasses

    from fdt.client.conclusion import Conclusion
    from fdt.script.second_run import SecondRun

    config = verify_config(options)

    def in_double(num_steps: str, tell: Callable[[str], None]) -> None:
        conclusion = Conclusion(tell=tell, num_steps=int(num_steps))
        _run_in_session(dataclasses.replace(config, in_double=True), conclusion)

    with contextlib.closing(SecondRun(in_double)) as second:
        return _run_in_session(config, Conclusion(second))


def _check(options: Check) -> int:
    if not _readable(options):
        return 2
    require_launchers([options.mode])
    check_options(options.mode, runtime_options(options))
    import atexit
    import contextlib

    from fdt import capture
    from fdt.client.findings import Findings
    from fdt.script import file_overlay, runner
    from fdt.script.stdout_redirect import output_aside

    _say(file_overlay.enter())
    config, findings, hooks = check_config(options), Findings(), contextlib.ExitStack()
    hooks.enter_context(capture.hooks(capture.Inspecting(config, findings), findings.refuse, _stays(config)))
    atexit.register(hooks.close)
    with output_aside() as verdict:
        status = runner.run(config.script, config.arguments, config.is_module)
        if runner.never_began():
            return status
        print(findings.text(whole=not status), file=verdict, flush=True)
    if status:
        _say(
            f"{config.script} ended with status {status}; what follows that place was not checked. A check trains "
            "nothing: it gives the script made-up figures, and a script that compares them may end early"
        )
    return status or (0 if findings.passed else 1)


def _predict(options: Predict) -> int:
    if options.script is not None and not options.calibrate and not _readable(options):
        return 2
    from fdt.cli.predict import predict

    return predict(options)


def _compare(options: Compare) -> int:
    if not _readable(options):
        return 2
    require_launchers(["sync", "async"])
    from fdt.cli.compare import compare

    return compare(options)


def _readable(options: OfScript) -> bool:
    """Returns whether the script can be opened; if not, prints python's error. Warns of options after the script."""
    from fdt.script import runner

    if options.module:
        return True
    complaint = runner.unreadable(options.script)
    if complaint is not None:
        print(complaint, file=sys.stderr)
        return False
    if options.arguments and os.path.isfile(options.script):
        with open(options.script, encoding="utf-8", errors="replace") as file:
            said = misplaced(options, file.read())
        if said is not None:
            _say(f"warning: {said}")
    return True


def _run_in_session(config: "RunConfig", conclusion: "Conclusion | None" = None) -> int:
    """Runs the script in a session; `fdt.script.runner` describes the order in which things end."""
    import atexit
    import contextlib

    from fdt import capture
    from fdt.base.quiet_grpc import import_grpc

    import_grpc()
    from fdt.client.report import say
    from fdt.client.session import Session
    from fdt.script import runner
    from fdt.script.child_processes import Children

    owner = os.getpid()
    with contextlib.ExitStack() as ending:
        session = ending.enter_context(Session(config))
        hooks = contextlib.ExitStack()
        hooks.enter_context(capture.hooks(capture.Training(session), stays=_stays(config)))
        # Registered before the script's handlers, so called after them: a `fit` in a thread or a handler of the script
        # still calls the hooks, which refuse it since the session is closed. Without them it would train on this machine.
        atexit.register(hooks.close)
        with Children(say).watched():
            status = runner.run(config.script, config.arguments, config.is_module)
        if os.getpid() != owner:
            # A child that the script forked has reached the end of the script. The session belongs to the parent.
            ending.pop_all()
            return status
        return _end(session, config, status, conclusion)


def _stays(config: "RunConfig") -> Callable[[str], None] | None:
    """Returns the function that reports eager steps that run on this machine; None if such steps are refused."""
    return _say if config.else_local else None


def _end(session: "Session", config: "RunConfig", status: int, conclusion: "Conclusion | None") -> int:
    from fdt.errors import FdtError
    from fdt.script.runner import INTERRUPTED, never_began

    shown = 130 if status == INTERRUPTED else status
    if (
        session.verification is None
        and not never_began()
        and not session.distributed
        and status not in (INTERRUPTED, _FAILED)
    ):
        _say(f"no training step was found in {config.script}; nothing was distributed")
    try:
        session.close(shown)
        session.write_report(shown)
    except (FdtError, OSError) as error:
        _say(str(error))
        return status or _FAILED
    if session.verification is not None and conclusion is not None and not never_began():
        return status or conclusion.status(session.verification)
    return status


def _config(options: Config) -> int:
    from fdt.cli import sources
    from fdt.errors import UsageError

    try:
        print("\n".join(sources.show(options, tuple(MODES))))
    except sources.SourceError as error:
        raise UsageError(str(error)) from error
    return 0


def _completion(options: Completion) -> int:
    from fdt.cli.command_line import completion

    print(completion("fdt", options.shell))
    return 0


# ---- serve ----------------------------------------------------------------------------------------------------------


# Seconds after which `_Stopped` is raised again if it had no effect.
_AGAIN_S = 1.0


class _Stopped(BaseException):
    """Raised at SIGINT or SIGTERM."""


def _serve(options: Serve) -> int:
    from fdt.base.log import configure

    configure(options.log_level, options.log_json)
    if options.join is not None:
        return _serve_host(options)
    require_launchers(offered(options))
    config = serve_config(options)
    from fdt.base.installed import require_pool, slower
    from fdt.base.log import notice

    require_pool(config.modes, config.num_workers)
    if config.num_workers and (said := slower()) is not None:
        notice(said)
    if config.placing is not None and config.network is not None:
        from fdt.pool.scheduling import preflight

        if options.dry_run:
            print(preflight.show(config.placing, config.network, config.listen))
            return 0
        preflight.check(config.placing, config.network)
    import contextlib

    with contextlib.ExitStack() as ending:
        _serve_pool(options, config, ending)
    return 0


def _serve_pool(options: Serve, config: "ServeConfig", ending: "contextlib.ExitStack") -> None:
    """Serves until a signal stops the pool, or its jobs have been saved after SIGTERM. Registers cleanup in `ending`."""
    import dataclasses

    from fdt.pool.server import Server
    from fdt.pool.state_folder import AUDIT_LOG, TOKENS
    from fdt.transport import tokens

    kept = _kept(options)
    if kept is not None:
        ending.callback(kept.close)
        config = dataclasses.replace(
            config,
            tokens=config.tokens or kept.path / TOKENS,
            audit_log=config.audit_log or kept.path / AUDIT_LOG,
        )
        if makes_token(options) and config.token is not None:
            config = dataclasses.replace(config, token=kept.token(config.token))
    server = Server(config, kept=kept)
    leave = _stop_on_signals()
    try:
        address = server.start()
        if makes_token(options) and config.token is not None:
            ending.enter_context(tokens.published(address, config.token))
        _present(server, address, config, options.mode)
        leave.append(lambda: server.leave(config.grace_s))
        server.wait()
    except _Stopped:
        pass
    finally:
        _heard()
        server.stop()


def _present(server: "Server", address: str, config: "ServeConfig", mode: str) -> None:
    """Prints a pool's address and offer, and warns of the access that its options open."""
    from fdt.base.log import notice

    if config.token is None:
        notice(
            "this pool has no token (--no-token): it is open to every local user, who can run programs on its workers, "
            "fetch what others have sent, and cancel their jobs"
        )
    workers = f"{config.num_workers} worker{'' if config.num_workers == 1 else 's'}"
    print(f"fdt: pool at {address}, {workers}, mode {mode}", flush=True)
    if server.persons and config.token is not None:
        notice(f"{len(server.persons)} person(s) have tokens of their own: {config.tokens}")
    if config.page is not None:
        print(f"fdt: page at {server.link} (for one browser, once; `fdt page` prints others)", flush=True)
    if config.network is not None:
        notice(
            f"hosts may join over {config.network.interface} ({config.network.cidr}); what their synchronous workers "
            "exchange is neither encrypted nor authenticated"
        )
        if config.open_servers:
            notice(
                "asynchronous workers of several hosts open servers for everybody on these hosts' networks "
                "(--open-servers): anyone who reaches one can run code as the user who runs this pool"
            )
    notice(server.network)
    notice(_walls(config.walls))
    if config.data:
        notice(f"workers read files of data, if the client has the same: {', '.join(map(str, config.data))} (--data)")
    notice(str(config.bounds))


def _kept(options: Serve) -> "StateFolder | None":
    """Opens the state folder, which earlier pools may have used; returns None if there is none."""
    from fdt.base import user_folder
    from fdt.base.log import notice
    from fdt.pool.state_folder import StateFolder

    path, is_asked = state_folder(options)
    if path is not None and not is_asked:
        try:
            user_folder.make(path)
        except OSError as error:
            notice(f"the list of jobs will be lost when this pool ends: {error}. Name a folder for it with --state DIR")
            path = None
    return None if path is None else StateFolder(path)


def _serve_host(options: Serve) -> int:
    from fdt.base.installed import require_pool

    require_pool((), 0)
    config = join_config(options)
    from fdt.base.log import notice
    from fdt.pool.host import Membership

    _stop_on_signals()
    member = Membership(config)
    try:
        member.join()
        workers = f"{config.num_workers} worker{'' if config.num_workers == 1 else 's'}"
        print(f"fdt: joined the pool at {config.pool} with {workers}, at {config.network.address}", flush=True)
        notice(member.network)
        notice(_walls(config.walls))
        notice(str(config.bounds))
        notice(member.serve())
    except _Stopped:
        _heard()
        member.leave()
    finally:
        _heard()
        member.close()
    return 0


def _walls(wanted: bool) -> str:
    """Returns the line that describes the workers' sandbox."""
    if not wanted:
        return "workers are not walled in (--no-walls): a program in one has all rights of the user who runs this pool"
    from fdt.worker.sandbox import tried

    return str(tried())


def _stop_on_signals() -> list[Callable[[], None]]:
    """Makes SIGINT and SIGTERM raise `_Stopped`, and again every `_AGAIN_S` seconds until `_heard` is called.

    Once is not enough: Python discards an exception that is raised in a destructor or a callback.

    Returns:
        An empty list. If the caller adds a function, the next SIGTERM calls it, once, and does not raise.
    """
    import signal

    leave: list[Callable[[], None]] = []

    def stop(number: int, _: object) -> None:
        if number == signal.SIGTERM and leave:
            leave.pop()()
            return
        # Ignores further signals: stopping has its own limits, and an interrupted stop would leave workers behind.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_S, _AGAIN_S)
        raise _Stopped

    def again(_: int, __: object) -> None:
        raise _Stopped

    signal.signal(signal.SIGALRM, again)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    return leave


def _heard() -> None:
    """Ends the signal handling of `_stop_on_signals`, and ignores signals during the shutdown."""
    import signal

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 0)
