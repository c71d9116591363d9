"""Runs a file as `python SCRIPT ARGS` would, inside a process that has already run the command `fdt`.

It repeats what python does for a script, step by step, so that the script sees no difference: a fresh `__main__` module,
`sys.argv`, `sys.path[0]`, the way it ends. `tests/fidelity` compares both.

**How it ends.** In python's order, as far as the script can see it:

1. The top level ends. An exception is shown (`sys.excepthook`), the message of a `SystemExit` is printed. `run` returns.
2. The caller closes its session. It must do so here: step 3 stops the executors of a pool in this process.
3. The caller returns `finish(status)` to the interpreter. Python waits for the script's non-daemon threads,
4. calls the atexit handlers, last registered first: the script's come before those of FDT and of what it imported,
5. and destroys the modules. `__main__` is still the script's own: no module of FDT ever replaces it.

A script trains inside step 1. Later training, from a thread or an atexit handler, finds a closed session and is refused;
it never runs unnoticed on this machine.
"""

import builtins
import codecs
import importlib.machinery
import importlib.util
import io
import marshal
import os
import pkgutil
import re
import runpy
import signal
import sys
import traceback
import types
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from fdt.errors import FdtError
from fdt.script.outline.files import is_own
from fdt.script.outline.sites import SITES

# What `run` returns for an unhandled KeyboardInterrupt: the status of a process killed by SIGINT, as in `subprocess`.
INTERRUPTED = -int(signal.SIGINT)

_HOUSE = tuple(
    os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), package, "")
    for package in ("fdt", "hfdt", "nfdt")
)


def unreadable(path: str) -> str | None:
    """Returns python's message about a script that it cannot open, None if it can. Does not open it: it may be a pipe."""
    location = _absolute(path)
    try:
        os.stat(location)
        if not os.access(location, os.R_OK):
            raise PermissionError(13, os.strerror(13))
    except OSError as error:
        return _cannot_open(location, error)
    return None


def run(path: str, arguments: Sequence[str], is_module: bool = False) -> int:
    """Runs the script until its top level has ended.

    Afterwards its `__main__`, `sys.argv` and `sys.path` stay, for its threads and atexit handlers.

    Args:
        path: A Python file, source or compiled, a notebook, or a directory or zip file with a `__main__.py`.
        arguments: `sys.argv[1:]` of the script.
        is_module: Whether `path` is the name of a module, as after `python -m`.

    Returns:
        The exit status, in [0, 255], or `INTERRUPTED`. Pass it to `finish`.
    """
    # The function that the interpreter itself calls; its frames are in python's tracebacks, too.
    run_module: Callable[..., object] = vars(runpy)["_run_module_as_main"]
    if is_module:
        sys.argv = ["-m", *arguments]
        if not sys.flags.safe_path:
            sys.path[0] = os.getcwd()
        _install_main()
        return _status_of(_attempt(run_module, path))
    location = _absolute(path)
    importer = pkgutil.get_importer(location)
    sys.argv = [path, *arguments]
    _set_path(location, is_package=importer is not None)
    namespace = _install_main()
    if importer is not None:
        alter_argv = False
        return _status_of(_attempt(run_module, "__main__", alter_argv))
    return _run_file(location, namespace)


def never_began() -> bool:
    """Whether no line of the script has run because of a SyntaxError in it, which has been shown."""
    error = getattr(sys, "last_value", None)
    return isinstance(error, SyntaxError) and error.__traceback__ is None


def finish(status: int) -> int:
    """Returns the status for `sys.exit`; raises KeyboardInterrupt, without a traceback, if the script died of one.

    Python then ends the process by the signal (130 in a shell) once the atexit handlers have run.
    """
    if status == INTERRUPTED:
        _interrupt_silently()
    return status


def _run_file(location: str, namespace: dict[str, Any]) -> int:
    try:
        with io.open_code(location) as file:
            source = file.read()
    except OSError as error:
        _tell(_cannot_open(location, error))
        return 2
    loader = "SourcelessFileLoader" if _is_compiled(location, source) else "SourceFileLoader"
    namespace["__loader__"] = getattr(importlib.machinery, loader)("__main__", location)
    namespace["__file__"] = location
    namespace["__cached__"] = None
    code: list[types.CodeType] = []
    raised = _attempt(lambda: code.append(_compile(location, _text(location, source, namespace))))
    if raised is None:
        raised = _attempt(exec, code[0], namespace)
    _flush()
    status = _status_of(raised)
    if not isinstance(raised, SystemExit):
        # As python does; atexit handlers and remaining threads can see this.
        namespace.pop("__file__", None)
        namespace.pop("__cached__", None)
    return status


# Preparing `__main__` and `sys`.


def _absolute(path: str) -> str:
    """Joins as python does for `__file__`: nothing is normalised."""
    return path if os.path.isabs(path) else os.getcwd() + os.sep + path


def _cannot_open(location: str, error: OSError) -> str:
    return f"{sys.orig_argv[0]}: can't open file {location!r}: [Errno {error.errno}] {error.strerror}"


def _set_path(location: str, *, is_package: bool) -> None:
    """Replaces the entry in `sys.path` that the interpreter set for `fdt` by the script's. With `-P` it has set none."""
    entry = location if is_package else os.path.dirname(os.path.realpath(location))
    if not sys.flags.safe_path:
        sys.path[0] = entry
    elif is_package:
        sys.path.insert(0, entry)


def _install_main() -> dict[str, Any]:
    module = types.ModuleType("__main__")
    namespace = vars(module)
    namespace["__loader__"] = importlib.machinery.BuiltinImporter
    if sys.version_info < (3, 14):
        namespace["__annotations__"] = {}
    namespace["__builtins__"] = builtins
    sys.modules["__main__"] = module
    return namespace


def _is_compiled(location: str, source: bytes) -> bool:
    return location.endswith(".pyc") or source[:2] == importlib.util.MAGIC_NUMBER[:2]


def _text(location: str, source: bytes, namespace: dict[str, Any]) -> bytes:
    if not location.endswith(".ipynb"):
        return source
    from fdt.script.notebook_cells import source_of

    return source_of(location, source, namespace)


def _compile(location: str, source: bytes) -> types.CodeType:
    if _is_compiled(location, source):
        if source[:4] != importlib.util.MAGIC_NUMBER:
            raise RuntimeError("Bad magic number in .pyc file")
        code: types.CodeType = marshal.loads(source[16:])
        return code
    _check_text(location, source)
    return SITES.compiled(source, location) or compile(source, location, "exec", dont_inherit=True)


def _check_text(location: str, source: bytes) -> None:
    """Raises the errors of python's file reader; `compile` words them differently, or accepts such text in a comment."""
    encoding = _declared_encoding(source)
    if encoding is None:
        _check_utf8(location, source)
    elif encoding != "utf-8":
        problem = f"{encoding} with BOM" if source.startswith(codecs.BOM_UTF8) else encoding
        try:
            if problem != encoding:
                raise LookupError
            source.decode(encoding)
        except (UnicodeDecodeError, LookupError):
            raise SyntaxError(f"encoding problem: {problem}") from None
    if b"\0" in source:
        start = source.rfind(b"\n", 0, source.index(b"\0")) + 1
        text = source[start : source.index(b"\0")].decode(encoding or "utf-8", "replace")
        raise SyntaxError(
            "source code cannot contain null bytes", (location, source.count(b"\n", 0, start) + 1, 0, text)
        )


def _check_utf8(location: str, source: bytes) -> None:
    try:
        source.decode("utf-8")
    except UnicodeDecodeError as error:
        line = source.count(b"\n", 0, error.start) + 1
        raise SyntaxError(
            f"Non-UTF-8 code starting with '\\x{source[error.start]:02x}' in file {location} on line {line}, "
            "but no encoding declared; see https://peps.python.org/pep-0263/ for details"
        ) from None


def _declared_encoding(source: bytes) -> str | None:
    """Returns the encoding that the first two lines or a byte order mark name (PEP 263), None for none."""
    marked = source.startswith(codecs.BOM_UTF8)
    for line in source.removeprefix(codecs.BOM_UTF8).splitlines()[:2]:
        if cookie := re.match(rb"[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)", line):
            name = cookie[1].decode("ascii").lower().replace("_", "-")
            if re.match(r"(latin-1|iso-8859-1|iso-latin-1)(-|$)", name):
                return "iso-8859-1"
            return "utf-8" if re.match(r"utf-8(-|$)", name) else cookie[1].decode("ascii")
        if line.strip(b" \t\f") and not line.lstrip(b" \t\f").startswith(b"#"):
            break
    return "utf-8" if marked else None


# Running, and showing errors.


def _attempt(function: Callable[..., object], *arguments: object) -> BaseException | None:
    """Calls the function; returns what it raised, so that the caller is in no `except`: hooks must see no handled exception."""
    # Keeps a debugger that steps past the script's end from stepping into this frame, and then into others of FDT.
    sys._getframe().f_trace_lines = False
    trace = sys.gettrace()
    try:
        function(*arguments)
    except BaseException as error:
        return error
    finally:
        sys.settrace(trace)
    return None


def _tell(text: object) -> None:
    """Prints on standard error as the interpreter does: the script may have closed, removed or replaced it."""
    stream = getattr(sys, "stderr", None)
    if stream is None:
        _attempt(lambda: os.write(2, f"{text}\n".encode(errors="backslashreplace")))
        return
    _attempt(lambda: stream.write(str(text)))
    if _attempt(lambda: stream.write("\n")) is not None:
        _attempt(os.write, 2, b"\n")


def _status_of(error: BaseException | None) -> int:
    """Shows the exception of the script's top level, and returns its exit status."""
    if error is None:
        return 0
    if isinstance(error, SystemExit):
        return _exit_status(error)
    peel(error)
    if isinstance(error, FdtError) and getattr(sys, "excepthook", None) is sys.__excepthook__:
        # Shows only the script's frames, since no library between them is at fault, and prints the message once.
        peel(error, _is_a_librarys)
        _set_last(type(error), error, error.__traceback__)
        shown, said = traceback.format_exception(error), traceback.format_exception_only(error)
        where = "" if error.__traceback__ is None else "".join(shown[: len(shown) - len(said)])
        _tell(f"{where}fdt: {error}")
        return error.exit_status
    leaving = _show(error)
    if leaving is not None:
        return _exit_status(leaving)
    if type(error) is KeyboardInterrupt:
        return INTERRUPTED
    if isinstance(error, FdtError):
        _tell(f"fdt: {error}")
        return error.exit_status
    return 1


def _exit_status(leaving: SystemExit) -> int:
    code = leaving.code
    if code is None:
        return 0
    if isinstance(code, int):
        # Python's exit turns a number that does not fit a C long into -1.
        return (code if -(2**63) <= code < 2**63 else -1) & 0xFF
    _tell(code)
    return 1


def _show(error: BaseException) -> SystemExit | None:
    """Calls `sys.excepthook` as the interpreter does; returns the SystemExit that the hook raised, if it did."""
    _set_last(type(error), error, error.__traceback__)
    hook = getattr(sys, "excepthook", None)
    if hook is None:
        _tell("sys.excepthook is missing")
        hook = sys.__excepthook__
    sys.audit("sys.excepthook", hook, type(error), error, error.__traceback__)
    failure = _attempt(lambda: hook(type(error), error, error.__traceback__))
    if isinstance(failure, SystemExit):
        return failure
    if failure is not None:
        peel(failure)
        _tell("Error in sys.excepthook:")
        sys.__excepthook__(type(failure), failure, failure.__traceback__)
        _tell("\nOriginal exception was:")
        sys.__excepthook__(type(error), error, error.__traceback__)
    return None


def _set_last(kind: Any, value: Any, traceback: Any) -> None:
    sys.last_type, sys.last_value, sys.last_traceback = kind, value, traceback
    if sys.version_info >= (3, 12):
        sys.last_exc = value


def _flush() -> None:
    for stream in (getattr(sys, "stderr", None), getattr(sys, "stdout", None)):
        _attempt(getattr(stream, "flush", object))


def _interrupt_silently() -> NoReturn:
    """Raises a KeyboardInterrupt that is not shown and leaves `sys` unchanged, since the script's own was shown already."""
    hook = sys.excepthook
    last = tuple(getattr(sys, name, None) for name in ("last_type", "last_value", "last_traceback"))

    def restore(*_: object) -> None:
        sys.excepthook = hook
        _set_last(*last)

    sys.excepthook = restore
    raise KeyboardInterrupt


# Tracebacks.


_Entries = list[types.TracebackType]


def peel(error: BaseException, leaves: Callable[[_Entries, int], bool] | None = None) -> None:
    """Removes frames from the traceback of an exception and of all exceptions chained to it or grouped in it.

    Args:
        error: The exception.
        leaves: Returns whether to remove an entry, given all entries and its index; None removes FDT's frames.
    """
    leaves = leaves or _is_ours
    waiting, seen = [error], set()
    while waiting:
        current = waiting.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        current.__traceback__ = _without(current.__traceback__, leaves)
        linked = (current.__cause__, current.__context__, *getattr(current, "exceptions", ()))
        waiting.extend(other for other in linked if isinstance(other, BaseException))


def _without(
    traceback: types.TracebackType | None, leaves: Callable[[_Entries, int], bool]
) -> types.TracebackType | None:
    entries: _Entries = []
    while traceback is not None:
        entries.append(traceback)
        traceback = traceback.tb_next
    kept = None
    for index in reversed(range(len(entries))):
        if not leaves(entries, index):
            entries[index].tb_next = kept
            kept = entries[index]
    return kept


def _is_ours(entries: _Entries, index: int) -> bool:
    """Whether a frame is FDT's, or the import system's beside one of FDT's, which python hides only if there is no hook."""

    def filename(position: int) -> str:
        return entries[position].tb_frame.f_code.co_filename

    if not filename(index).startswith("<frozen importlib"):
        return filename(index).startswith(_HOUSE)
    for step in (-1, 1):
        position = index
        while 0 <= position < len(entries) and filename(position).startswith("<frozen importlib"):
            position += step
        if 0 <= position < len(entries) and filename(position).startswith(_HOUSE):
            return True
    return False


def _is_a_librarys(entries: _Entries, index: int) -> bool:
    """Whether an entry's code is not the script's: it is of an installed package or Python, or AutoGraph generated it."""
    code = entries[index].tb_frame.f_code
    if code.co_filename == getattr(sys.modules["__main__"], "__file__", None):
        return False
    made = os.path.basename(code.co_filename).startswith("__autograph_generated_file")
    return made or code.co_filename.startswith("<frozen ") or not is_own(code.co_filename)
