"""Restricts a process to the system calls that computing needs, by a seccomp filter in classic BPF, for x86-64.

A call is allowed, refused (EPERM), or reported as unknown (ENOSYS) if the C library then uses another call. Calls newer than
this list are reported as unknown too, since nobody has reviewed them.
"""

import ctypes
import errno
import os
import platform
import socket
import struct
from collections.abc import Iterable, Sequence

_MACHINE = "x86_64"
_ARCHITECTURE = 0xC000003E
_NEWEST = 450
_CLONE3 = 435

# Calls that affect other processes, the kernel or the whole machine, and changes of files that Landlock does not cover.
_REFUSED: dict[str, tuple[int, ...]] = {
    # ptrace, kcmp, process_vm_readv/writev, pidfd_getfd, process_madvise, process_mrelease
    "other processes' memory": (101, 312, 310, 311, 438, 440, 448),
    # tkill, rt_sigqueueinfo, rt_tgsigqueueinfo, pidfd_send_signal; `restrict` handles kill and tgkill
    "signals by other ways": (200, 129, 297, 424),
    # mount, umount2, pivot_root, chroot, fsopen, fsconfig, fsmount, fspick, open_tree, move_mount, mount_setattr,
    # open_by_handle_at
    "mounts": (165, 166, 155, 161, 430, 431, 432, 433, 428, 429, 442, 304),
    "namespaces: setns, unshare": (308, 272),
    # bpf, perf_event_open, userfaultfd, io_uring_setup/enter/register, keyctl, add_key, request_key
    "large parts of the kernel": (321, 298, 323, 425, 426, 427, 250, 248, 249),
    # kexec_load, kexec_file_load, create/init/finit/delete/query_module, get_kernel_syms, swapon, swapoff, reboot,
    # settimeofday, clock_settime, clock_adjtime, adjtimex, acct, quotactl, quotactl_fd, syslog, sethostname,
    # setdomainname, iopl, ioperm, modify_ldt, personality, vhangup, nfsservctl, uselib, ustat, sysfs, _sysctl,
    # lookup_dcookie
    "the machine": (
        *(246, 320, 174, 175, 313, 176, 178, 177, 167, 168, 169, 164, 227, 305, 159, 163, 179, 443, 103, 170, 171),
        *(172, 173, 154, 135, 153, 180, 134, 136, 139, 156, 212),
    ),
    # chmod, fchmod, fchmodat, chown, fchown, lchown, fchownat, set/lset/fset/remove/lremove/fremovexattr, utime, utimes,
    # futimesat, truncate
    "files' modes, owners, times, lengths by name": (
        *(90, 91, 268, 92, 93, 94, 260, 188, 189, 190, 197, 198, 199, 132, 235, 261, 76),
    ),
    # shm*, sem*, msg*, mq_*
    "what processes share by number or name": (29, 30, 31, 67, 64, 65, 66, 220, 68, 69, 70, 71, *range(240, 246)),
    # inotify_init, inotify_init1, inotify_add_watch, fanotify_init, fanotify_mark
    "what others do with files": (253, 294, 254, 300, 301),
}
_PROGRAMS = (59, 322, 57, 58)  # execve, execveat, fork, vfork
_KILL, _TGKILL, _PRLIMIT, _UTIMENSAT, _PRCTL, _CLONE, _SOCKET = 62, 234, 302, 280, 157, 56, 41
# sched_setaffinity, sched_setparam, sched_setscheduler, sched_setattr, move_pages, migrate_pages
_SCHEDULING = (203, 142, 144, 314, 279, 256)
_SETPRIORITY, _IOPRIO_SET = 141, 251

_PR_SET_PDEATHSIG = 1
_CLONE_THREAD = 0x10000
# Mounts, control groups, host name, IPC, users, processes, network.
_CLONE_NAMESPACES = 0x20000 | 0x2000000 | 0x4000000 | 0x8000000 | 0x10000000 | 0x20000000 | 0x40000000

_SECCOMP, _SET_FILTER, _ALL_THREADS = 317, 1, 1

# Instructions of classic BPF.
_LOAD, _EQUAL, _GREATER, _ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_REFUSE, _UNKNOWN = _ERRNO | errno.EPERM, _ERRNO | errno.ENOSYS
_OFFSET_NUMBER, _OFFSET_ARCHITECTURE, _OFFSET_ARGUMENTS = 0, 4, 16

Instruction = tuple[int, int, int, int]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def restrict(*, programs: bool) -> None:
    """Permanently restricts the system calls of all threads of this process, and of all that they start.

    The caller must have set no_new_privs.

    Args:
        programs: Whether processes and programs may be started.

    Raises:
        OSError: The kernel refuses, or there is no list for this machine (ENOSYS).
    """
    own = os.getpid()
    refused = [number for numbers in _REFUSED.values() for number in numbers]
    filter_ = [step for number in refused + ([] if programs else list(_PROGRAMS)) for step in _refuse(number)]
    filter_ += _refuse(_CLONE3, _UNKNOWN)
    clone = _none_of(0, _CLONE_NAMESPACES)
    if not programs:
        clone += _some_of(0, _CLONE_THREAD)
        # With `programs`, child processes have numbers that are not known yet; there Landlock restricts signals.
        filter_ += _when(_KILL, _one_of(0, [own])) + _when(_TGKILL, _one_of(0, [own]))
    filter_ += _when(_CLONE, clone)
    filter_ += _when(_PRLIMIT, _one_of(0, [0, own]))
    for number in _SCHEDULING:
        filter_ += _when(number, _one_of(0, [0]))
    filter_ += _when(_SETPRIORITY, _one_of(0, [0]) + _one_of(1, [0]))
    filter_ += _when(_IOPRIO_SET, _one_of(0, [1]) + _one_of(1, [0]))
    # Allowed for the descriptor of an open file only, which `fdt.transport.blob_store.BlobStore.has` needs.
    filter_ += _when(_UTIMENSAT, _one_of(1, [0]) + _one_of(1, [0], high=True))
    # The process must not change its parent-death signal, which ends it with its parent.
    filter_ += _when(_PRCTL, _none_equal(0, _PR_SET_PDEATHSIG))
    filter_ += _when(_SOCKET, _families())
    _install(filter_)


def without_new_unix_sockets() -> None:
    """Forbids all threads to make unix sockets. Open sockets stay.

    Landlock does not restrict connections to sockets that have a file, such as a container engine's.

    Raises:
        OSError: The kernel refuses, or there is no list for this machine (ENOSYS).
    """
    _install(_when(_SOCKET, _none_equal(0, socket.AF_UNIX)))


def _families() -> list[Instruction]:
    """Allows unix and internet sockets, and netlink's protocol for interfaces only."""
    netlink = [*_one_of(0, [socket.AF_NETLINK]), *_one_of(2, [0])]
    free = [socket.AF_UNIX, socket.AF_INET, socket.AF_INET6]
    passed = [step for family in free for step in ((_EQUAL, 0, 1, family), (_RETURN, 0, 0, _ALLOW))]
    return [_argument(0), *passed, *netlink]


# ---- the assembler --------------------------------------------------------------------------------------------------


def _argument(index: int, high: bool = False) -> Instruction:
    return _LOAD, 0, 0, _OFFSET_ARGUMENTS + 8 * index + (4 if high else 0)


def _refuse(number: int, answer: int = _REFUSE) -> list[Instruction]:
    return [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, answer)]


def _when(number: int, checks: Sequence[Instruction]) -> list[Instruction]:
    """Allows a call if all checks pass."""
    return [(_EQUAL, 0, len(checks) + 1, number), *checks, (_RETURN, 0, 0, _ALLOW)]


def _one_of(index: int, values: Sequence[int], *, high: bool = False) -> list[Instruction]:
    """Refuses a call unless the low (or high) half of an argument is one of the values."""
    tests = [(_EQUAL, len(values) - position, 0, value) for position, value in enumerate(values)]
    return [_argument(index, high), *tests, (_RETURN, 0, 0, _REFUSE)]


def _none_equal(index: int, value: int) -> list[Instruction]:
    return [_argument(index), (_EQUAL, 0, 1, value), (_RETURN, 0, 0, _REFUSE)]


def _none_of(index: int, bits: int) -> list[Instruction]:
    return [_argument(index), (_ANY_BIT, 0, 1, bits), (_RETURN, 0, 0, _REFUSE)]


def _some_of(index: int, bits: int) -> list[Instruction]:
    return [_argument(index), (_ANY_BIT, 1, 0, bits), (_RETURN, 0, 0, _REFUSE)]


def _install(steps: Iterable[Instruction]) -> None:
    if platform.machine() != _MACHINE:
        raise OSError(errno.ENOSYS, f"no list of system calls for {platform.machine()}")
    filter_: list[Instruction] = [
        (_LOAD, 0, 0, _OFFSET_ARCHITECTURE),
        (_EQUAL, 1, 0, _ARCHITECTURE),
        (_RETURN, 0, 0, _REFUSE),
        (_LOAD, 0, 0, _OFFSET_NUMBER),
        # The calls of the 32-bit interface x32 have larger numbers, too.
        (_GREATER, 0, 1, _NEWEST),
        (_RETURN, 0, 0, _UNKNOWN),
        *steps,
        (_RETURN, 0, 0, _ALLOW),
    ]
    packed = b"".join(struct.pack("=HBBI", *step) for step in filter_)
    program = _Program(len(filter_), packed)
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(
        ctypes.c_long(_SECCOMP), ctypes.c_long(_SET_FILTER), ctypes.c_long(_ALL_THREADS), ctypes.byref(program)
    )
    if result:
        # A positive result is the ID of a thread that could not take the filter.
        number = ctypes.get_errno() if result < 0 else errno.ESRCH
        raise OSError(number, os.strerror(number))
