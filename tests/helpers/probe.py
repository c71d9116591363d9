# -*- coding: latin-1 -*-
"""Prints, as JSON, all that a script can see of the process it runs in. Run by python and by us, it must print the same.

The last lines come from an atexit handler, from a thread that outlives the top level, and from `__del__` at the end.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import gc
import inspect
import json
import locale
import multiprocessing
import os
import pickle
import resource
import signal
import sys
import threading
import traceback
import warnings

# Taken before this file makes anything of its own.
GLOBALS = sorted(globals())
STACK = [frame.filename for frame in inspect.stack()]

_LIMIT_S = 60


class Point:
    """Something to pickle."""

    def __init__(self, x):
        self.x = x

    def __eq__(self, other):
        return type(other) is Point and other.x == self.x


class Last:
    """Lives until the modules are destroyed."""

    note = ""

    def __del__(self):
        print("del", __name__, self.note, flush=True)


def show(value):
    """Without addresses."""
    return repr(value).split(" at 0x")[0]


def view(_=None):
    """What this process knows of the script; also called in children."""
    main = sys.modules["__main__"]
    return {
        "name": __name__,
        "main": [show(getattr(main, name, "missing")) for name in ("__name__", "__file__", "__spec__", "__loader__")],
        "mp_main": "__mp_main__" in sys.modules,
        "argv": sys.argv,
        "path0": sys.path[0],
        "fdt": sorted(name for name in sys.modules if name.partition(".")[0] == "fdt")
        if __name__ != "__main__"
        else [],
    }


def in_thread(function):
    """Returns what the function returns when a thread calls it."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result(_LIMIT_S)


def in_child(method):
    """What a child process sees, through a pool of that start method."""
    context = multiprocessing.get_context(method)
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(view).result(_LIMIT_S)


def caught():
    """A traceback that the script itself takes, with a chained exception."""
    try:
        try:
            raise ValueError("first")
        except ValueError as error:
            raise KeyError("second") from error
    except KeyError:
        return traceback.format_exc()


def warned():
    """The warnings that are shown, with where they are said to come from."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.warn("deprecated", DeprecationWarning, stacklevel=1)
        warnings.warn("pending", PendingDeprecationWarning, stacklevel=1)
        warnings.warn("caller", UserWarning, stacklevel=2)
        return [[str(w.message), w.category.__name__, w.filename, w.lineno] for w in seen]


def handlers():
    """What each signal does."""
    return {
        number.name: show(signal.getsignal(number)) for number in sorted(signal.valid_signals() & set(signal.Signals))
    }


def probe():
    """All of it."""
    main = sys.modules["__main__"]
    return {
        "view": view(),
        "globals": GLOBALS,
        "special": {k: show(v) for k, v in sorted(vars(main).items()) if k.startswith("__")},
        "order": [name for name in vars(main) if name.startswith("__")],
        "is_main": vars(main) is globals(),
        "annotations_of_future": view.__annotations__ | {"code": view.__code__.co_flags},
        "latin": ascii("\xe9 �"),
        "builtins": show(__builtins__),
        "module_type": show(type(main)),
        "path": sys.path,
        "flags": show(sys.flags),
        "orig_argv": sys.orig_argv,
        "executable": [sys.executable, sys.prefix, sys.base_prefix, sys._base_executable],
        "warnoptions": sys.warnoptions,
        "xoptions": sys._xoptions,
        "cwd": os.getcwd(),
        "environment": dict(os.environ),
        "signals": handlers(),
        "mask": sorted(int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "main_thread": [threading.current_thread() is threading.main_thread(), threading.main_thread().name],
        "filters": [show(f) for f in warnings.filters],
        "warned": warned(),
        "hooks": [
            sys.excepthook is sys.__excepthook__,
            sys.displayhook is sys.__displayhook__,
            sys.unraisablehook is sys.__unraisablehook__,
            sys.breakpointhook is sys.__breakpointhook__,
            threading.excepthook is threading.__excepthook__,
        ],
        "tracing": [show(sys.gettrace()), show(sys.getprofile())],
        "meta_path": [show(finder) for finder in sys.meta_path],
        "path_hooks": len(sys.path_hooks),
        "streams": [
            [s.name, s.mode, s.encoding, s.errors, s.line_buffering, s.write_through, s.isatty()]
            for s in (sys.stdin, sys.stdout, sys.stderr)
        ],
        "stdin": sys.stdin.read(),
        "locale": [locale.setlocale(locale.LC_ALL), locale.getpreferredencoding(), sys.getfilesystemencoding()],
        "limits": [
            sys.getrecursionlimit(),
            sys.getswitchinterval(),
            gc.get_threshold(),
            gc.isenabled(),
            sys.get_int_max_str_digits(),
            resource.getrlimit(resource.RLIMIT_NOFILE),
            os.umask(0o022),
        ],
        "stack": STACK,
        "handled": show(sys.exc_info()),
        "last": hasattr(sys, "last_value"),
        "source": inspect.getsource(Point),
        "module_of": [Point.__module__, Point.__qualname__, inspect.getfile(Point), show(inspect.getmodule(Point))],
        "pickled": pickle.loads(pickle.dumps(Point(3))) == Point(3),
        "pickled_in_thread": in_thread(lambda: pickle.loads(pickle.dumps(Point(4))) == Point(4)),
        "spawn": in_child("spawn"),
        "forkserver": in_child("forkserver"),
        "fork": in_child("fork"),
        "caught": caught(),
        "start_method": multiprocessing.get_start_method(),
        "modules": sorted(sys.modules),
        "descriptors": sorted(os.listdir("/proc/self/fd")),
        "children": multiprocessing.active_children(),
    }


def say_again(when):
    """What is left of the script after its top level."""
    main = sys.modules["__main__"]
    rest = [name for name in vars(main) if name.startswith("__")]
    print(when, rest, vars(main) is globals(), pickle.loads(pickle.dumps(Point(5))) == Point(5), flush=True)


def outlive():
    """Waits in a thread for the top level to end."""
    threading.main_thread().join(_LIMIT_S)
    say_again("thread")


if __name__ == "__main__":
    atexit.register(say_again, "atexit first registered")
    atexit.register(say_again, "atexit last registered")
    LAST = Last()
    LAST.note = "not collected before"
    print(json.dumps(probe()), flush=True)
    threading.Thread(target=outlive, name="outlive").start()
    sys.exit(int(sys.argv[1]) if sys.argv[1:] else None)
