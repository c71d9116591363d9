"""Networks of workers' own, and the tunnels between them, as processes."""

import contextlib
import os
import signal
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from fdt.worker import tunnel
from fdt.worker.network_namespace import network_wall
from fdt.worker.tunnel import _Identity
from tests.helpers.cluster import PAUSES, written
from tests.helpers.processes import PYTHON, Background, background, children_of, run
from tests.helpers.thorough import some_of

LIMIT_S = 60.0
NOBODY = 65534
_PR_SET_DUMPABLE = 4

pytestmark = pytest.mark.skipif(bool(network_wall()), reason=f"no network namespaces here: {network_wall()}")


# Prints what a process sees once it is isolated; with an argument, as that user, who has no rights.
SEES = f"""
import ctypes, os, socket, sys
from fdt.worker import network_namespace
if sys.argv[1:]:
    user = int(sys.argv[1])
    os.setgroups([]), os.setgid(user), os.setuid(user)
    # Who changes his user gets his own files in /proc back with the next program he starts. This stands for that.
    ctypes.CDLL(None).prctl({_PR_SET_DUMPABLE}, 1, 0, 0, 0)
network_namespace.isolate()
with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as connection:
    connection.connect(listener.getsockname())
print(os.getuid(), os.getgid(), *(name for _, name in socket.if_nameindex()))
"""


def test_a_process_sees_loopback_alone(tmp_path: Path) -> None:
    finished = run([PYTHON, "-c", SEES], limit_s=LIMIT_S, cwd=tmp_path).expect(0)
    assert finished.stdout.split() == [str(os.getuid()), str(os.getgid()), "lo"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_no_privilege_is_needed(tmp_path: Path) -> None:
    finished = run([PYTHON, "-c", SEES, str(NOBODY)], limit_s=LIMIT_S, cwd=tmp_path).expect(0)
    assert finished.stdout.split() == [str(NOBODY), str(NOBODY), "lo"]


@contextmanager
def joined(directory: Path, outside: int, size: int) -> Iterator[tuple[Background, Background]]:
    commands = [
        [PYTHON, "-m", "tests.helpers.tunnel_end", str(rank), str(directory), str(size), str(outside)]
        for rank in (0, 1)
    ]
    with background(commands[0]) as asking, background(commands[1]) as answering:
        yield asking, answering


def listening(process: psutil.Process) -> list[tuple[str, int]]:
    """Returns where a process listens in the machine's own network."""
    found = [each for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
    return [(each.laddr.ip, each.laddr.port) for each in found]


def test_what_two_processes_say_to_each_other_arrives_and_nothing_else_is_reached(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as outside:
        port = outside.getsockname()[1]
        with joined(tmp_path, port, 20_000_001) as ends:
            ends[0].wait_for_line("arrived True", LIMIT_S)
            for end in ends:
                assert end.wait_for_line("interfaces", LIMIT_S).split() == ["interfaces", "lo"]
                assert end.wait_for_line("outside", LIMIT_S).strip() == "outside ConnectionRefusedError"


def answered(address: tuple[str, int], said: bytes) -> bytes:
    """Returns what a plain connection is answered until it is dropped, which must be long before the limit."""
    with socket.create_connection(address, LIMIT_S) as stranger:
        stranger.sendall(said)
        with contextlib.suppress(ConnectionResetError):
            return stranger.recv(1000)
    return b""


def answered_inside_tls(address: tuple[str, int], identity: _Identity | None) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if identity is not None:
        with tunnel._file(identity.certificate + identity.key) as path:
            context.load_cert_chain(path)
    with (
        contextlib.suppress(ssl.SSLError, ConnectionError),
        socket.create_connection(address, LIMIT_S) as plain,
        context.wrap_socket(plain) as stranger,
    ):
        # Of TLS 1.3 a client hears that it was refused only when it reads.
        stranger.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        return stranger.recv(1000)
    return b""


def test_a_stranger_on_the_network_is_dropped(tmp_path: Path) -> None:
    """From an address of the job's own hosts: silence, nonsense, another protocol, a certificate of the stranger's own."""
    with socket.create_server(("127.0.0.1", 0)) as outside, joined(tmp_path, outside.getsockname()[1], 1 << 20) as ends:
        tunnels = [psutil.Process(int(end.wait_for_line("tunnel", LIMIT_S).split()[1])) for end in ends]
        ends[0].wait_for_line("arrived True", LIMIT_S)
        for process in tunnels:
            (address,) = listening(process)
            assert address[0] == "127.0.0.1"
            for said in (b"", b"\x16\x03\x01\x00\x05", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"):
                # Nothing, or an alert of TLS.
                assert answered(address, said)[:1] in (b"", b"\x15")
            for identity in (None, _Identity.make("127.0.0.1")):
                assert answered_inside_tls(address, identity) == b""
        assert all(process.is_running() for process in tunnels)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_tunnel_ends_with_its_worker(tmp_path: Path, number: signal.Signals) -> None:
    with socket.create_server(("127.0.0.1", 0)) as outside, joined(tmp_path, outside.getsockname()[1], 1 << 20) as ends:
        ends[0].wait_for_line("arrived True", LIMIT_S)
        tunnels = [psutil.Process(int(end.wait_for_line("tunnel", LIMIT_S).split()[1])) for end in ends]
        for end in ends:
            end.process.send_signal(number)
        _, alive = psutil.wait_procs(tunnels, LIMIT_S)
        assert not alive


def test_what_a_host_moves_is_counted_from_within(tmp_path: Path) -> None:
    """Its own network shows a worker nothing of that."""
    code = (
        "from fdt.base import sampler; from fdt.worker import network_namespace; "
        "before = sampler.moved_bytes(); sampler.keep_network(); "
        "network_namespace.isolate(); after = sampler.moved_bytes(); print(before, after); "
        "assert 0 < before[0] <= after[0] and 0 < before[1] <= after[1]"
    )
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as some:
        some.sendall(b"so that loopback has moved something")
        run([PYTHON, "-c", code], limit_s=LIMIT_S, cwd=tmp_path).expect(0)


def interfaces(process: psutil.Process) -> list[str]:
    lines = Path("/proc", str(process.pid), "net", "dev").read_text().splitlines()[2:]
    return [line.partition(":")[0].strip() for line in lines]


def namespace(process: psutil.Process) -> int:
    return Path("/proc", str(process.pid), "ns", "net").stat().st_ino


@pytest.mark.parametrize(("mode", "num_processes"), some_of([("sync", 2), ("async", 1)], [("sync", 2)]))
def test_nothing_of_a_run_is_on_the_machines_network(mode: str, num_processes: int, tmp_path: Path) -> None:
    """Ranks meet, in a network that they share; the control process opens no port."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    command = [PYTHON, "-m", "fdt", "run", "--mode", mode, "--workers", "2", written(tmp_path, PAUSES), pipe, "2"]
    with background(command, cwd=tmp_path) as training:
        training.wait_for_line("in the middle", 4 * LIMIT_S)
        (server,) = children_of(training.pid, "fdt.pool.server")
        (forks,) = children_of(training.pid, "fdt.worker.forkserver")[:1]
        serving = [each for each in forks.children() if each.num_threads() > 1]
        assert len(serving) >= num_processes
        assert all(interfaces(each) == ["lo"] for each in serving)
        networks = {namespace(each) for each in serving}
        assert namespace(psutil.Process()) not in networks
        # Ranks share one; asynchronous processes, of which one more may wait for the next job, have one each.
        assert len(networks) == (1 if mode == "sync" else len(serving))
        assert not [each for each in server.net_connections("inet") if each.status == psutil.CONN_LISTEN]
        pipe.write_text("")
        training.wait_for_line("weights True", LIMIT_S)
