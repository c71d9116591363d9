"""Implements the commands that run a script: `fdt run`, `verify`, `check`, `predict` and `compare`."""

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fdt.base import interpreter
from fdt.cli.command_line import misplaced, say
from fdt.cli.options import Check, Compare, OfScript, Predict, Run, Verify
from fdt.cli.settings import check_config, check_runtime, require_launchers, run_config, verify_config

if TYPE_CHECKING:
    from fdt.base.config import RunConfig
    from fdt.client.conclusion import Conclusion
    from fdt.client.session import Session

# The exit status where FDT failed.
_FAILED = 125


def run(options: Run) -> int:
    """Runs a script; its training is distributed."""
    if not _readable(options):
        return 2
    check_runtime(options)
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
    say(f"it runs without this terminal: `fdt attach {run.name}` shows what it prints, `fdt cancel {run.name}` ends it")
    return 0


def verify(options: Verify) -> int:
    """Compares a script's first steps with plain TensorFlow's."""
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


def check(options: Check) -> int:
    """Tells which steps of a script would be distributed."""
    if not _readable(options):
        return 2
    check_runtime(options)
    import atexit
    import contextlib

    from fdt import capture
    from fdt.capture.purpose import Inspecting
    from fdt.client.findings import Findings
    from fdt.script import file_overlay, runner
    from fdt.script.stdout_redirect import output_aside

    say(file_overlay.enter())
    config, findings, hooks = check_config(options), Findings(), contextlib.ExitStack()
    hooks.enter_context(capture.hooks(Inspecting(config, findings), findings.refuse, _stays(config)))
    atexit.register(hooks.close)
    with output_aside() as verdict:
        status = runner.run(config.script, config.arguments, config.is_module)
        if runner.never_began():
            return status
        print(findings.text(whole=not status), file=verdict, flush=True)
    if status:
        say(
            f"{config.script} ended with status {status}; what follows that place was not checked. A check trains "
            "nothing: it gives the script made-up figures, and a script that compares them may end early"
        )
    return status or (0 if findings.passed else 1)


def predict(options: Predict) -> int:
    """Predicts how fast a script would be on more workers."""
    if options.script is not None and not options.calibrate and not _readable(options):
        return 2
    from fdt.cli import predict as implemented

    return implemented.predict(options)


def compare(options: Compare) -> int:
    """Runs a script in every form, and shows the measured times."""
    if not _readable(options):
        return 2
    require_launchers(["sync", "async"])
    from fdt.cli import compare as implemented

    return implemented.compare(options)


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
            say(f"warning: {said}")
    return True


def _run_in_session(config: "RunConfig", conclusion: "Conclusion | None" = None) -> int:
    """Runs the script in a session; `fdt.script.runner` describes the order in which things end."""
    import atexit
    import contextlib

    from fdt import capture
    from fdt.base.quiet_grpc import import_grpc
    from fdt.capture.purpose import Training

    import_grpc()
    from fdt.client.report import say
    from fdt.client.session import Session
    from fdt.script import runner
    from fdt.script.child_processes import Children

    owner = os.getpid()
    with contextlib.ExitStack() as ending:
        session = ending.enter_context(Session(config))
        hooks = contextlib.ExitStack()
        hooks.enter_context(capture.hooks(Training(session), stays=_stays(config)))
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
    return say if config.else_local else None


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
        say(f"no training step was found in {config.script}; nothing was distributed")
    try:
        session.close(shown)
        session.write_report(shown)
    except (FdtError, OSError) as error:
        say(str(error))
        return status or _FAILED
    if session.verification is not None and conclusion is not None and not never_began():
        return status or conclusion.status(session.verification)
    return status
