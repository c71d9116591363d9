"""Runs the commands `fdt`, `hfdt` and `nfdt`: parses the command line, calls the command, returns its exit status.

This module imports almost nothing: each command imports what it needs when it runs, so that `--help` is quick and a
script's process contains as few modules of FDT as possible.
"""

import importlib
import os
import sys
from collections.abc import Sequence

from fdt.cli.command_line import completion_file, parse, say
from fdt.cli.option_fields import Options
from fdt.cli.options import MODES, Completion, Config

_FAILED = 125
# The module of `fdt.cli` that has a command, as a function of the command's name.
_MODULES = {
    "script_commands": ("run", "verify", "check", "predict", "compare"),
    "serve": ("serve",),
    "doctor": ("doctor",),
    "setup": ("setup",),
    "person_tokens": ("token",),
    "top": ("top",),
    "pool_commands": ("jobs", "logs", "cancel", "attach", "page"),
    "main": ("config", "completion"),
}
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
        status = _call(options)
    except KeyboardInterrupt:
        status = runner.INTERRUPTED
    except FdtError as error:
        say(str(error))
        status = error.exit_status
    except Exception:
        sys.excepthook(*sys.exc_info())
        status = _FAILED
    return runner.finish(status)


def _call(options: Options) -> int:
    name = options.command
    if name in _SPEAKS_TO_A_POOL:
        from fdt.base.quiet_grpc import import_grpc

        import_grpc()
    (module,) = (module for module, names in _MODULES.items() if name in names)
    return int(getattr(importlib.import_module(f"fdt.cli.{module}"), name)(options))


def config(options: Config) -> int:
    """Shows the options that the environment and files set."""
    from fdt.cli import sources
    from fdt.errors import UsageError

    try:
        print("\n".join(sources.show(options, tuple(MODES))))
    except sources.SourceError as error:
        raise UsageError(str(error)) from error
    return 0


def completion(options: Completion) -> int:
    """Prints a file that completes commands in a shell."""
    print(completion_file("fdt", options.shell))
    return 0
