"""What TCP gets through a laboratory's links: plain sockets, one process at each end.

    python benchmarks/lab --hosts 4 --bandwidth 100Mbit --measure

Measured on two busy cores, as shares of what frames leave to TCP (1448 of 1514 bytes: 0.956 of the nominal rate):

| link | one way | the other way | both at once, each | three to one, together | one to three, together | round trip |
|---|---|---|---|---|---|---|
| 10 Mbit/s | 0.999 | 0.998 | 0.976 | 1.01 | 1.04 | 28 us |
| 100 Mbit/s | 1.000 | 0.997 | 0.991 | 1.01 | 1.01 | 23 us |
| 1000 Mbit/s | 1.000 | 1.000 | 0.989 | 1.00 | 1.02 | 23 us |

Both at once is less because acknowledgements travel beside the data. Flows that share a link do not share it evenly within
seconds, and more than 1 comes of adding up flows that do not end together.

Run as a script, this file is one of the ends.
"""

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if __name__ != "__main__":
    from lab.network import POOL, LabError, Network

_CHUNK_BYTES = 1 << 18
_ROUND_TRIPS = 50
_LIMIT_S = 60.0


def measure(network: "Network", seconds: float) -> dict[str, dict[str, float]]:
    """Measures between the pool's namespace and the hosts, each case by itself.

    Args:
        network: Whose links nobody else uses meanwhile.
        seconds: That each case takes.

    Returns:
        For each case, for each flow ("host1 to pool"), the bytes a second that a program gets through; and as the last case
        seconds of a round trip of one byte.
    """
    first = network.hosts[0]
    cases = {
        "one way": [(POOL, first)],
        "the other way": [(first, POOL)],
        "both at once": [(POOL, first), (first, POOL)],
    }
    if len(network.hosts) > 1:
        cases["all to one"] = [(host, POOL) for host in network.hosts]
        cases["one to all"] = [(POOL, host) for host in network.hosts]
    measured = {name: _flows(network, flows, seconds) for name, flows in cases.items()}
    return measured | {"round trip": {f"{first} to {POOL}": _round_trip(network, first, POOL)}}


def describe(network: "Network", measured: dict[str, dict[str, float]]) -> list[str]:
    """Returns what was measured, a line a case."""
    expected = network.link.payload_bytes_per_s()
    lines = [
        f"links of {network.link.bandwidth_bps / 1e6:g} Mbit/s, of which TCP can carry {expected / 1e6:.3f} MB/s",
    ]
    for case, flows in measured.items():
        if case == "round trip":
            lines += [f"  {case:14} {seconds * 1e6:8.0f} us" for seconds in flows.values()]
            continue
        each = ", ".join(f"{flow} {rate / 1e6:.3f} MB/s" for flow, rate in flows.items())
        shared = case in ("all to one", "one to all")
        share = sum(flows.values()) / (1 if shared else len(flows)) / expected
        lines.append(f"  {case:14} {share:8.1%}    {each}")
    return lines


def _flows(network: "Network", flows: Sequence[tuple[str, str]], seconds: float) -> dict[str, float]:
    with contextlib.ExitStack() as ended:
        receivers = [ended.enter_context(_end(network, to, "receive", network.address(to))) for _, to in flows]
        ports = [_line(receiver)["port"] for receiver in receivers]
        for (sender, to), port in zip(flows, ports, strict=True):
            ended.enter_context(_end(network, sender, "send", network.address(to), str(port), str(seconds)))
        rates = [_line(receiver)["bytes_per_s"] for receiver in receivers]
    return {f"{sender} to {to}": rate for (sender, to), rate in zip(flows, rates, strict=True)}


def _round_trip(network: "Network", sender: str, to: str) -> float:
    address = network.address(to)
    with (
        _end(network, to, "echo", address) as echo,
        _end(network, sender, "ask", address, str(_line(echo)["port"])) as asks,
    ):
        return float(_line(asks)["seconds"])


@contextlib.contextmanager
def _end(network: "Network", member: str, *arguments: str) -> Any:
    command = network.inside(member, [sys.executable, str(Path(__file__).resolve()), *arguments])
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process
        process.wait(_LIMIT_S)
    finally:
        process.kill()
        process.communicate()


def _line(process: "subprocess.Popen[str]") -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise LabError(f"A measurement ended early: {process.args}")
    said: dict[str, Any] = json.loads(line)
    return said


# ---- the ends -----------------------------------------------------------------------------------------------------------


def _listen(address: str) -> socket.socket:
    listener = socket.create_server((address, 0))
    listener.settimeout(_LIMIT_S)
    print(json.dumps({"port": listener.getsockname()[1]}), flush=True)
    connection, _ = listener.accept()
    connection.settimeout(_LIMIT_S)
    return connection


def receive(address: str) -> None:
    """Takes what comes; the clock runs from the first bytes on, which are not counted."""
    buffer = bytearray(_CHUNK_BYTES)
    with _listen(address) as connection:
        connection.recv_into(buffer)
        started_s, count = time.perf_counter(), 0
        while got := connection.recv_into(buffer):
            count, ended_s = count + got, time.perf_counter()
    print(json.dumps({"bytes_per_s": count / (ended_s - started_s)}), flush=True)


def send(address: str, port: str, seconds: str) -> None:
    """Sends for so long."""
    chunk = bytes(_CHUNK_BYTES)
    with socket.create_connection((address, int(port)), _LIMIT_S) as connection:
        until_s = time.perf_counter() + float(seconds)
        while time.perf_counter() < until_s:
            connection.sendall(chunk)


def echo(address: str) -> None:
    """Sends back each byte."""
    with _listen(address) as connection:
        while byte := connection.recv(1):
            connection.sendall(byte)


def ask(address: str, port: str) -> None:
    """Sends single bytes and waits for each; the middle one of the times counts."""
    times = []
    with socket.create_connection((address, int(port)), _LIMIT_S) as connection:
        for _ in range(_ROUND_TRIPS):
            start = time.perf_counter()
            connection.sendall(b"?")
            connection.recv(1)
            times.append(time.perf_counter() - start)
    print(json.dumps({"seconds": sorted(times)[len(times) // 2]}), flush=True)


if __name__ == "__main__":
    {"receive": receive, "send": send, "echo": echo, "ask": ask}[sys.argv[1]](*sys.argv[2:])
