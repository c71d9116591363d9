"""What a terminal shows of the libraries' own log under `fdt run`: nothing that plain `python` does not show."""

import collections
import os
import pty
import re
import select
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.helpers.pool import Pool
from tests.helpers.processes import PYTHON

_LIMIT_S = 240.0
_SCRIPT = """
print("first line of the script")
import keras
import numpy as np

x = np.random.default_rng(0).random((64, 8), "float32")
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit(x, x.sum(1, keepdims=True), batch_size=16, epochs=1, verbose=0)
print("last line of the script")
"""
# Of abseil's log and TensorFlow's older one, as gRPC and CUDA's libraries use them; what changes with each run is cut off.
_LOGGED = re.compile(
    r"^(?:\d{4}-\d\d-\d\d [\d:.]+: ([IWEF] .*)|([IWEF])\d{4} [\d:.]+ +\d+ (.*)|(WARNING: All log messages .*))"
)
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_MORE = re.compile(r"^To enable the following instructions|goaway|chttp2", re.IGNORECASE)


def _shown(command: Sequence[str | Path], folder: Path) -> list[str]:
    """Runs a command in a terminal; returns its lines."""
    environment = {name: v for name, v in os.environ.items() if name not in ("TF_CPP_MIN_LOG_LEVEL", "GRPC_VERBOSITY")}
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*map(str, command)], cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    text, end_s = b"", time.monotonic() + _LIMIT_S
    try:
        while select.select([ours], [], [], max(0.0, end_s - time.monotonic()))[0]:
            try:
                chunk = os.read(ours, 1 << 16)
            except OSError:  # The terminal's other end is closed.
                break
            text += chunk
        assert process.wait(max(1.0, end_s - time.monotonic())) == 0, text.decode(errors="replace")[-5000:]
    finally:
        process.kill()
        os.close(ours)
    # Where the machine is slow, a line that says what is waited for has been shown, and removed by an escape sequence.
    return re.split(r"\r*\n|\r", _ESCAPES.sub("", text.decode(errors="replace")))


def _logged(lines: Sequence[str]) -> collections.Counter[str]:
    """Counts the libraries' log lines, without times and numbers of processes."""
    found: list[str] = []
    for line in lines:
        if match := _LOGGED.match(line):
            found.append(" ".join(filter(None, match.groups())))
        elif _MORE.search(line):
            found.append(line)
    return collections.Counter(found)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> collections.Counter[str]:
    """What plain `python` shows of the libraries' log."""
    folder = tmp_path_factory.mktemp("plain")
    (folder / "train.py").write_text(_SCRIPT)
    logged = _logged(_shown([PYTHON, "train.py"], folder))
    assert logged, "TensorFlow logs its start, so this test sees its log"
    return logged


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_run_shows_nothing_of_the_libraries_that_python_does_not(
    mode: str, plain: collections.Counter[str], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(_SCRIPT)
    lines = _shown([PYTHON, "-m", "fdt", "run", "--mode", mode, "--workers", "2", "train.py"], tmp_path)
    assert _logged(lines) - plain == {}, "\n".join(lines)
    before = lines[: next(n for n, line in enumerate(lines) if line == "first line of the script")]
    assert not _logged(before), "\n".join(before)
    assert any("training on 2 workers" in line for line in lines)


def test_a_run_on_a_pool_and_other_commands_show_nothing_either(
    pool: Pool, plain: collections.Counter[str], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(_SCRIPT)
    for command in (["run", "--workers", "2", *pool.options, "train.py"], ["check", "train.py"]):
        lines = _shown([PYTHON, "-m", "fdt", *command], tmp_path)
        assert _logged(lines) - plain == {}, "\n".join(lines)
    assert not _logged(_shown([PYTHON, "-m", "fdt", "doctor", *pool.options], tmp_path))


_IDLE = """
import os, sys, threading
from concurrent import futures
from fdt.base.quiet_grpc import import_grpc
import_grpc()
print("GRPC_VERBOSITY" in os.environ)
import grpc

class Handler(grpc.GenericRpcHandler):
    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(lambda request, context: b"")

server = grpc.server(futures.ThreadPoolExecutor(1), [Handler()], options=[("grpc.max_connection_idle_ms", 100)])
port = server.add_insecure_port("127.0.0.1:0")
server.start()
channel, idle = grpc.insecure_channel(f"127.0.0.1:{port}"), threading.Event()
channel.unary_unary("/a/b")(b"")
channel.subscribe(lambda state: state is grpc.ChannelConnectivity.IDLE and idle.set())
print("hung up:", idle.wait(30))
try:
    server.add_insecure_port(sys.argv[1])
except RuntimeError:
    print("refused")
os._exit(0)
"""


def test_only_errors_of_grpc_are_shown_and_its_variable_is_the_users() -> None:
    """A server that ends an idle connection makes gRPC log it; a port that is taken is an error."""
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        command = [sys.executable, "-u", "-c", _IDLE, f"127.0.0.1:{taken.getsockname()[1]}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=True)
    assert done.stdout == "False\nhung up: True\nrefused\n", done.stderr
    lines = done.stderr.splitlines()
    assert lines and all(line.startswith("E") and "add_port" in line for line in lines), done.stderr
