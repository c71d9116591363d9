"""Restricts a process's access to the file system to some paths, by Landlock. Needs no root and no namespace.

Calls the kernel's three functions by number, and covers all rights that the running kernel knows. docs/decisions/0037 says why
it uses no library.
"""

import ctypes
import dataclasses
import os
import stat
from collections.abc import Iterable
from pathlib import Path

# The numbers are the same on all architectures.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION = 1
_RULE_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_FILE, _MAKE_REGULAR, _TRUNCATE, _IOCTL_DEVICE = 1 << 5, 1 << 8, 1 << 14, 1 << 15
# Rights that a rule may give to something that is not a folder.
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEVICE
# How many rights each version of the interface knows; from the sixth on, it also restricts signals and abstract unix sockets.
_NUM_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
_SCOPE_ABSTRACT_SOCKETS, _SCOPE_SIGNALS = 1 << 0, 1 << 1
_FIRST_WITH_SCOPES = 6

READ = _READ_FILE | _READ_DIR
EXECUTE = _EXECUTE
# Plain files and nothing else: no folders, links, pipes, sockets or devices.
KEEP_FILES = READ | _WRITE_FILE | _TRUNCATE | _MAKE_REGULAR | _REMOVE_FILE
CHANGE_FILES = READ | _WRITE_FILE | _TRUNCATE
USE_DEVICE = READ | _WRITE_FILE | _IOCTL_DEVICE
# All rights; and the rights that change nothing. `restrict` masks rights that the running kernel does not know.
EVERYTHING = (1 << max(_NUM_RIGHTS.values())) - 1
LOOK = READ | EXECUTE | _IOCTL_DEVICE


@dataclasses.dataclass(frozen=True)
class Rule:
    """The rights that a process keeps at and below a path."""

    path: Path
    rights: int


class _RulesetAttributes(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64)]


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("rights", ctypes.c_uint64), ("descriptor", ctypes.c_int32)]


def version() -> int:
    """Returns the version of the kernel's interface.

    Raises:
        OSError: The kernel has no Landlock (ENOSYS), or it is switched off (EOPNOTSUPP).
    """
    return _call(_CREATE_RULESET, None, 0, _ASK_VERSION)


def restrict(rules: Iterable[Rule], *, abstract_sockets: bool) -> int:
    """Permanently takes from this thread, and the threads and processes that it starts, all file access that no rule grants.

    It can then send signals only to processes that it has started. The caller must have set no_new_privs.

    Args:
        rules: The granted rights; rules whose paths do not exist are skipped.
        abstract_sockets: Whether unix sockets without a file may be used to reach other processes.

    Returns:
        The version of the kernel's interface.

    Raises:
        OSError: The kernel refuses.
    """
    number = version()
    known = (1 << _NUM_RIGHTS[min(number, max(_NUM_RIGHTS))]) - 1
    scopes = 0
    if number >= _FIRST_WITH_SCOPES:
        scopes = _SCOPE_SIGNALS | (0 if abstract_sockets else _SCOPE_ABSTRACT_SOCKETS)
    attributes = _RulesetAttributes(known, 0, scopes)
    ruleset = _call(_CREATE_RULESET, ctypes.byref(attributes), ctypes.sizeof(attributes), 0)
    try:
        for rule in rules:
            _add(ruleset, rule, known)
        _call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)
    return number


def _add(ruleset: int, rule: Rule, known: int) -> None:
    try:
        descriptor = os.open(rule.path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        # A path that does not exist, or cannot be opened, needs no rule.
        return
    try:
        rights = rule.rights & known
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= _OF_FILES
        _call(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, ctypes.byref(_PathBeneath(rights, descriptor)), 0)
    finally:
        os.close(descriptor)


def _call(number: int, *arguments: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    # Passed as longs: a variadic function reads the whole register, of which an int fills only a part.
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result: int = libc.syscall(ctypes.c_long(number), *words)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
