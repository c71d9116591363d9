"""Implements the notebook extension (`%load_ext fdt`): `%fdt attach --workers 2`, `%fdt detach`, `%fdt status`."""

import shlex
from typing import Any

from fdt.cli.api import Attached, parse_options
from fdt.errors import FdtError, UsageError

_USAGE = "expected `%fdt attach [OPTIONS OF fdt run]`, `%fdt detach` or `%fdt status`"
_NAME = "notebook"


def load_ipython_extension(shell: Any) -> None:
    """Registers `%fdt`; called by `%load_ext fdt`."""
    shell.register_magic_function(fdt, "line", "fdt")
    # A wrong option is shown without frames: the message is complete, and the frames are not the user's code.
    shell.set_custom_exc((FdtError,), _show)


def unload_ipython_extension(shell: Any) -> None:
    """Detaches and removes `%fdt`; called by `%unload_ext fdt`."""
    current = Attached.current()
    if current is not None:
        current.detach()
    shell.magics_manager.magics["line"].pop("fdt", None)
    shell.set_custom_exc((), None)


def fdt(line: str) -> None:
    """Sends the training of later cells to a pool, until it is detached.

    %fdt attach --mode sync --workers 2     # the options are those of `fdt run`
    %fdt status
    %fdt detach
    """
    command, *arguments = shlex.split(line) or [""]
    current = Attached.current()
    if command == "attach":
        Attached(parse_options([*arguments, "--", _NAME]))
    elif command == "detach" and not arguments:
        if current is None:
            raise UsageError("nothing is attached: `%fdt attach` comes first")
        current.detach()
    elif command == "status" and not arguments:
        print("not attached" if current is None else _status(current.report))
    else:
        raise UsageError(f"{_USAGE}. Received: %fdt {line}")


def _status(report: dict[str, Any]) -> str:
    steps = sum(fit["steps"] for fit in report["fits"])
    return f"attached: {report['mode']}, {report['workers']} workers; {steps} steps so far"


def _show(shell: Any, kind: type[BaseException], error: BaseException, traceback: Any, tb_offset: Any = None) -> None:
    """Shows an error of FDT: a wrong option in one line, any other with its traceback."""
    if isinstance(error, UsageError):
        shell._showtraceback(kind, error, [f"{kind.__name__}: {error}"])
    else:
        shell.showtraceback((kind, error, traceback), tb_offset=tb_offset)
