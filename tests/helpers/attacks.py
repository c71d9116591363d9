"""What a worker could try that has fallen to a stranger: `python -m tests.helpers.attacks UID [tensorflow]`.

Each attack is run twice, without walls and with them, in a process of its own, as the user UID. Prints a JSON object: of each
attack what came of it both times, "done" or the error's name, and by whom it can be made: anyone, root, or, where the system
allows it, "some".
"""

import ctypes
import dataclasses
import errno
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from fdt.worker import sandbox

_PTRACE_SEIZE, _PR_SET_PDEATHSIG, _CLONE_NEWUSER, _CLONE_NEWNET, _CLONE = 0x4206, 1, 0x10000000, 0x40000000, 56
_IO_URING_SETUP, _USERFAULTFD, _KEYCTL, _GET_KEYRING_ID, _SESSION_KEYRING = 425, 323, 250, 0, -3
SECRET = "a secret of the user's"


@dataclasses.dataclass(frozen=True)
class Ground:
    """What there is to attack: `outside` is the user's, `own` the worker's folder; a process that takes no part."""

    outside: Path
    own: Path
    store: Path
    other: Path
    bystander: int
    listening: str

    @property
    def secret(self) -> Path:
        return self.outside / "secret"

    def lay(self) -> None:
        """Puts everything in its place, whatever the last attack has done."""
        for folder in (self.outside, self.own, self.store, self.other):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(mode=0o700)
        self.secret.write_text(SECRET + "\n")
        (self.own / "mine").write_text("mine")
        (self.store / "blob").write_text("of the pool")
        (self.other / "state").write_text("of another worker")


Attack = Callable[[Ground], object]
_ATTACKS: dict[str, Attack] = {}
_TENSORFLOW: dict[str, Attack] = {}
# All others anyone may make.
_BY: dict[str, str] = {}


def attack(attack: Attack) -> Attack:
    _ATTACKS[attack.__name__] = attack
    return attack


def by_root(attack: Attack) -> Attack:
    _BY[attack.__name__] = "root"
    return attack


def by_some(attack: Attack) -> Attack:
    _BY[attack.__name__] = "some"
    return attack


def with_tensorflow(attack: Attack) -> Attack:
    _TENSORFLOW[attack.__name__] = attack
    return attack


def call(number_or_name: int | str, *arguments: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    if isinstance(number_or_name, str):
        result = getattr(libc, number_or_name)(*arguments)
    else:
        result = libc.syscall(ctypes.c_long(number_or_name), *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(result)


# ---- files ----------------------------------------------------------------------------------------------------------


@attack
def read_a_file_of_the_users(ground: Ground) -> None:
    assert SECRET in ground.secret.read_text()


@attack
def list_a_folder_of_the_users(ground: Ground) -> None:
    os.listdir(ground.outside)


@attack
@by_root
def read_the_shadow(ground: Ground) -> None:
    Path("/etc/shadow").read_bytes()


@attack
def read_the_accounts(ground: Ground) -> None:
    Path("/etc/passwd").read_bytes()


@attack
def append_to_a_file_of_the_users(ground: Ground) -> None:
    with open(ground.secret, "a") as file:
        file.write("x")


@attack
def make_a_file_outside(ground: Ground) -> None:
    (ground.outside / "new").write_text("x")


@attack
def make_a_temporary_file(ground: Ground) -> None:
    with tempfile.NamedTemporaryFile(dir="/tmp"):
        pass


@attack
def make_a_file_in_shared_memory(ground: Ground) -> None:
    with tempfile.NamedTemporaryFile(dir="/dev/shm"):
        pass


@attack
def write_into_the_store(ground: Ground) -> None:
    (ground.store / "new").write_text("x")


@attack
def change_a_blob(ground: Ground) -> None:
    (ground.store / "blob").write_text("x")


@attack
def delete_a_blob(ground: Ground) -> None:
    (ground.store / "blob").unlink()


@attack
def read_another_workers_file(ground: Ground) -> None:
    (ground.other / "state").read_text()


@attack
def write_into_another_workers_folder(ground: Ground) -> None:
    (ground.other / "new").write_text("x")


@attack
def link_to_a_file_by_name(ground: Ground) -> None:
    (ground.own / "link").symlink_to(ground.secret)
    (ground.own / "link").read_text()


@attack
def link_to_a_file(ground: Ground) -> None:
    (ground.own / "link").hardlink_to(ground.secret)


@attack
def move_a_file_out(ground: Ground) -> None:
    (ground.own / "mine").rename(ground.outside / "mine")


@attack
def move_a_file_in(ground: Ground) -> None:
    ground.secret.rename(ground.own / "secret")


@attack
def cut_a_file_short(ground: Ground) -> None:
    os.truncate(ground.secret, 0)


@attack
def open_a_file_to_others(ground: Ground) -> None:
    ground.secret.chmod(0o666)


@attack
def give_a_file_away(ground: Ground) -> None:
    os.chown(ground.secret, os.getuid(), os.getgid())


@attack
def change_a_files_time(ground: Ground) -> None:
    os.utime(ground.secret)


@attack
def make_a_pipe(ground: Ground) -> None:
    os.mkfifo(ground.own / "pipe")


@attack
def make_a_folder(ground: Ground) -> None:
    (ground.own / "folder").mkdir()


@attack
@by_root
def make_a_device(ground: Ground) -> None:
    os.mknod(ground.own / "null", 0o600 | 0o020000, os.makedev(1, 3))


# ---- other processes ------------------------------------------------------------------------------------------------


@attack
def read_an_environment(ground: Ground) -> None:
    Path(f"/proc/{ground.bystander}/environ").read_bytes()


@attack
def open_a_memory(ground: Ground) -> None:
    with open(f"/proc/{ground.bystander}/mem", "rb"):
        pass


@attack
def trace_a_process(ground: Ground) -> None:
    call("ptrace", _PTRACE_SEIZE, ground.bystander, None, None)


@attack
def signal_the_parent(ground: Ground) -> None:
    os.kill(os.getppid(), 0)


@attack
def signal_a_process(ground: Ground) -> None:
    os.kill(ground.bystander, signal.SIGCONT)


@attack
def signal_all_processes(ground: Ground) -> None:
    os.kill(-1, 0)


@attack
def limit_a_process(ground: Ground) -> None:
    resource.prlimit(ground.bystander, resource.RLIMIT_NOFILE)


@attack
def slow_a_process_down(ground: Ground) -> None:
    os.setpriority(os.PRIO_PROCESS, ground.bystander, 19)


@attack
def bind_a_process_to_a_core(ground: Ground) -> None:
    os.sched_setaffinity(ground.bystander, os.sched_getaffinity(ground.bystander))


@attack
def outlive_the_parent(ground: Ground) -> None:
    call("prctl", _PR_SET_PDEATHSIG, 0)


@attack
def start_a_process(ground: Ground) -> None:
    if not os.fork():
        os._exit(0)


@attack
def run_a_program(ground: Ground) -> None:
    os.execv("/bin/true", ["true"])


@attack
def run_a_program_by_its_file(ground: Ground) -> None:
    os.execve(os.open("/bin/true", os.O_RDONLY), ["true"], {})


# ---- the kernel -----------------------------------------------------------------------------------------------------


@attack
@by_root
def enter_a_namespace(ground: Ground) -> None:
    with open("/proc/self/ns/net") as namespace:
        call("setns", namespace.fileno(), 0)


@attack
@by_root
def make_a_namespace(ground: Ground) -> None:
    call("unshare", _CLONE_NEWNET)


@attack
@by_some
def become_root_of_a_namespace(ground: Ground) -> None:
    call("unshare", _CLONE_NEWUSER)


@attack
@by_some
def clone_into_a_namespace(ground: Ground) -> None:
    if not call(_CLONE, ctypes.c_long(_CLONE_NEWUSER | signal.SIGCHLD), None, None, None, None):
        os._exit(0)


@attack
@by_some
def open_an_io_ring(ground: Ground) -> None:
    parameters = ctypes.create_string_buffer(120)
    call(_IO_URING_SETUP, ctypes.c_long(1), parameters)


@attack
@by_some
def look_for_keys(ground: Ground) -> None:
    call(_KEYCTL, ctypes.c_long(_GET_KEYRING_ID), ctypes.c_long(_SESSION_KEYRING), ctypes.c_long(0))


@attack
@by_some
def watch_page_faults(ground: Ground) -> None:
    call(_USERFAULTFD, ctypes.c_long(1))


@attack
@by_root
def mount(ground: Ground) -> None:
    try:
        call("mount", b"none", str(ground.own).encode(), b"no-such-file-system", 0, None)
    except OSError as error:
        # So far it comes who may mount.
        if error.errno != errno.ENODEV:
            raise


@attack
@by_root
def change_the_root(ground: Ground) -> None:
    os.chroot(ground.own)


@attack
@by_root
def open_a_raw_socket(ground: Ground) -> None:
    socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).close()


@attack
@by_root
def open_a_packet_socket(ground: Ground) -> None:
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close()


@attack
def listen_to_the_kernels_events(ground: Ground) -> None:
    socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, 15).close()


@attack
def share_memory_by_number(ground: Ground) -> None:
    call("shmget", 0, 4096, 0o1600)


@attack
def watch_files(ground: Ground) -> None:
    call("inotify_init")


@attack
def connect_to_an_abstract_socket(ground: Ground) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect("\0" + ground.listening)


@attack
def connect_to_a_socket_once_attached(ground: Ground) -> None:
    """Such as a container engine's; from a thread that was there before."""
    go, caught = threading.Event(), []

    def connect() -> None:
        go.wait()
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(ground.listening)
        except OSError as error:
            caught.append(error)

    thread = threading.Thread(target=connect)
    thread.start()
    if not os.environ.get("BARE"):
        sandbox.shut_door()
    go.set()
    thread.join()
    if caught:
        raise caught[0]


# ---- what a program's operations do ---------------------------------------------------------------------------------


@with_tensorflow
def print_into_a_file(ground: Ground) -> None:
    import tensorflow as tf

    tf.raw_ops.PrintV2(input=tf.constant("printed"), output_stream=f"file://{ground.secret}")
    if "printed" not in ground.secret.read_text():
        raise OSError(errno.EACCES, "nothing was printed")


@with_tensorflow
def read_a_line_of_a_file_as_a_vocabulary(ground: Ground) -> None:
    import tensorflow as tf

    try:
        tf.raw_ops.FixedUnigramCandidateSampler(
            true_classes=tf.constant([[0]], tf.int64), num_true=1, num_sampled=1, unique=False, range_max=1,
            vocab_file=str(ground.secret), unigrams=[], num_reserved_ids=0, num_shards=1000, shard=0,
        )  # fmt: skip
    except tf.errors.OpError as error:
        if SECRET not in error.message:
            raise


@with_tensorflow
def read_a_file(ground: Ground) -> None:
    import tensorflow as tf

    assert SECRET.encode() in tf.io.read_file(str(ground.secret)).numpy()


@with_tensorflow
def write_a_file(ground: Ground) -> None:
    import tensorflow as tf

    tf.io.write_file(str(ground.outside / "new"), "x")


@with_tensorflow
def find_files(ground: Ground) -> None:
    import tensorflow as tf

    if not len(tf.io.matching_files(f"{ground.outside}/*").numpy()):
        raise OSError(errno.EACCES, "none were found")


# ---- the trial ------------------------------------------------------------------------------------------------------


def outcome(name: str, attack: Attack, ground: Ground, *, walled: bool) -> str:
    """Runs an attack in a process of its own; returns "done", or the name of the error."""
    ground.lay()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.environ["BARE"] = "" if walled else "1"
        os.set_inheritable(writer, False)
        told = "died"
        try:
            if walled:
                raised = sandbox.raise_walls(sandbox.Reach(ground.own, reads=(ground.store,)))
                assert not raised.missing, str(raised)
            attack(ground)
            told = "done"
        except OSError as error:
            told = errno.errorcode.get(error.errno or 0, str(error))
        except BaseException as error:
            denied = type(error).__name__ == "PermissionDeniedError"
            told = "EACCES" if denied else f"{type(error).__name__}: {str(error)[:200]}"
        finally:
            os.write(writer, told.encode())
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        told = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    # A program that was run instead has closed the pipe and tells nothing.
    return told or ("done" if status == 0 else f"status {status}")


def main(uid: int, attacks: dict[str, Attack]) -> None:
    # As in a worker: what cannot be read later is there.
    sandbox.python_folders()
    if uid != os.getuid():
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    base = Path(tempfile.mkdtemp(prefix="fdt-attacks-", dir="/tmp"))
    listening = str(base / "socket")
    bystander = subprocess.Popen(["/bin/sleep", "300"])
    try:
        outside, own, store, other = (base / name for name in ("outside", "own", "store", "other"))
        ground = Ground(outside, own, store, other, bystander.pid, listening)
        with socket.socket(socket.AF_UNIX) as by_file, socket.socket(socket.AF_UNIX) as abstract:
            by_file.bind(listening)
            abstract.bind("\0" + listening)
            by_file.listen()
            abstract.listen()
            found = {
                name: [outcome(name, each, ground, walled=walled) for walled in (False, True)]
                + [_BY.get(name, "anyone")]
                for name, each in attacks.items()
            }
    finally:
        bystander.kill()
        bystander.wait()
        shutil.rmtree(base)
    print(json.dumps(found))


if __name__ == "__main__":
    if sys.argv[2:] == ["tensorflow"]:
        import tensorflow as tf  # noqa: F401

        main(int(sys.argv[1]), _TENSORFLOW)
    else:
        main(int(sys.argv[1]), _ATTACKS)
