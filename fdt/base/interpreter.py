"""Commands of the Python interpreters that we start: none imports a file of the working directory in place of a module.

`python -m` and `python -c` look for modules in the working directory first, and its files may be anybody's. No other module of
ours names the interpreter in a command (`tests/integration/test_interpreter.py`).
"""

import sys

# Runs a module as `-m` does. Not by `-P`: a script sees that in `sys.flags`, and hands it on to processes of its own. Until the
# script's folder stands in its place, the first entry is the one that comes next anyway.
_AS_MODULE = """import sys
if not sys.flags.safe_path: sys.path[0] = sys.path[1]
import runpy
runpy._run_module_as_main(sys.argv.pop(1))"""


def of_module(name: str, *arguments: str, python: str | None = None) -> list[str]:
    """Returns the command that runs a module of an installed package.

    Args:
        name: The module.
        arguments: Its `sys.argv[1:]`.
        python: Interpreter on another machine; None for this one.
    """
    return [python or sys.executable, "-P", "-m", name, *arguments]


def of_code(code: str) -> list[str]:
    """Returns the command that runs a text."""
    return [sys.executable, "-P", "-c", code]


def of_file(path: str) -> list[str]:
    """Returns the command that runs a file which needs the standard library alone."""
    return [sys.executable, "-I", "-S", path]


def for_script(name: str, *arguments: str) -> list[str]:
    """Returns the command that runs a module which runs a user's script: the script sees what `python SCRIPT` shows it.

    Args:
        name: The module, such as `fdt`.
        arguments: Its `sys.argv[1:]`.
    """
    return [sys.executable, "-c", _AS_MODULE, name, *arguments]


def again(num_arguments: int) -> list[str]:
    """Returns the command by which a person started this process, unbuffered, without its last arguments.

    Args:
        num_arguments: How many are left away.
    """
    return [sys.executable, "-u", *sys.orig_argv[1 : len(sys.orig_argv) - num_arguments]]


def path() -> str:
    """Returns the interpreter, for a tool that starts it itself, which has to run in a folder of the system or of ours."""
    return sys.executable
