"""Warns of processes that a script starts and that load TensorFlow: without FDT's hooks, they train on the script's machine.

A thread reads Linux's /proc, which shows what processes have in memory without disturbing them. It starts when the script
starts its first process, so a script that starts none has no additional thread.
"""

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

from wrapt import register_post_import_hook

from fdt.base.patch import Patches

# Seconds between two looks. Importing TensorFlow takes longer.
_INTERVAL_S = 1.0
_PROC = "/proc"
_LIBRARY = b"libtensorflow"
_SHOWN = 100
# Where Python starts processes, except forks: module, class ("" for a function), name. Audit events are not used: Python calls
# their hook for each `id()` of the script, too, which then takes twenty times as long.
_STARTS = (
    ("subprocess", "Popen", "__init__"),
    ("os", "", "system"),
    ("os", "", "posix_spawn"),
    ("os", "", "posix_spawnp"),
    ("multiprocessing.util", "", "spawnv_passfds"),
)


class Children:
    """Watches this process's descendants, in a thread that starts with the first of them.

    Attributes:
        num_found: Number of processes that have loaded TensorFlow.
    """

    def __init__(self, say: Callable[[str], None], interval_s: float = _INTERVAL_S):
        """
        Args:
            say: Called with a line for the first process that has loaded TensorFlow, and at the end with their number.
            interval_s: Seconds between two looks.
        """
        self._say, self._interval_s = say, interval_s
        self._own = _command(os.getpid())
        self._known: set[int] = set()
        self._owner = os.getpid()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.num_found = 0

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Watches the processes that the script starts within the context."""
        patches = Patches()
        os.register_at_fork(after_in_parent=self.start)
        for module, owner, name in _STARTS:
            register_post_import_hook(functools.partial(self._install, patches, owner, name), module)
        try:
            yield
        finally:
            self._ended.set()
            patches.undo()
            if self._thread is not None and os.getpid() == self._owner:
                self._thread.join()
                if self.num_found > 1:
                    self._say(f"{self.num_found} processes that the script started had loaded TensorFlow")

    def _install(self, patches: Patches, owner: str, name: str, module: Any) -> None:
        # An import hook cannot be removed, so it may be called after the watch.
        if not self._ended.is_set():
            patches.wrap(getattr(module, owner) if owner else module, name, self._starts)

    def _starts(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.start()
        return original(*args, **kwargs)

    def start(self) -> None:
        """Starts the watching thread, unless it runs already or the watch has ended."""
        if self._thread is None and not self._ended.is_set() and os.getpid() == self._owner:
            self._thread = threading.Thread(target=self._watch, name="fdt-children", daemon=True)
            self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(self._interval_s):
            for process in _descendants(os.getpid()):
                if process not in self._known and self._computes(process):
                    self._known.add(process)
                    self._found(process)

    def _computes(self, process: int) -> bool:
        """Whether a process has loaded TensorFlow itself.

        A fork of this process does not count: it has inherited TensorFlow, and the hooks, which refuse a `fit` there.
        """
        command = _command(process)
        return command not in (self._own, "") and _LIBRARY in _content(process, "maps")

    def _found(self, process: int) -> None:
        self.num_found += 1
        if self.num_found == 1:
            self._say(
                f"the script has started a process that has loaded TensorFlow ({process}: {_command(process)[:_SHOWN]}): its "
                "training stays on this machine. Train in the script itself, or start `fdt run` there."
            )


def _descendants(process: int) -> Iterator[int]:
    """Yields the descendants of a process, except FDT's own processes."""
    for child in _children(process):
        words = _content(child, "cmdline").split(b"\0")
        # FDT's own processes: a pool of this run, or another run of the command.
        if not any(os.path.basename(word) == b"fdt" or word.startswith(b"fdt.") for word in words[:4]):
            yield child
            yield from _descendants(child)


def _children(process: int) -> list[int]:
    with contextlib.suppress(OSError):
        tasks = os.listdir(f"{_PROC}/{process}/task")
        return [int(child) for task in tasks for child in _content(process, f"task/{task}/children").split()]
    return []


def _command(process: int) -> str:
    return _content(process, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()


def _content(process: int, name: str) -> bytes:
    """Returns the content of a process's file in /proc; b"" if the process has ended, or is another user's."""
    with contextlib.suppress(OSError), open(f"{_PROC}/{process}/{name}", "rb") as file:
        return file.read()
    return b""
