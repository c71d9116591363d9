"""Turns on the link of the parameter servers' host."""

import contextlib
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import tensorflow as tf

from nfdt.link_semaphore import LinkSemaphore

# The server's is this process; the others are names alone: queues are on the server's host.
HOSTS = [f"/job:localhost/replica:0/task:{rank}/device:CPU:0" for rank in range(5)]
SERVER, OTHERS = HOSTS[0], HOSTS[1:]


def end(turns: LinkSemaphore, direction: str, worker: str) -> None:
    {"pull": turns.pulled, "push": turns.pushed}[direction](worker, [])


def take(turns: LinkSemaphore, direction: str, worker: str) -> None:
    if direction == "pull":
        turns.pull(worker)
    else:
        turns.push(worker, tf.zeros([]))


def together(turns: LinkSemaphore, direction: str, workers: Sequence[str], limit_s: float) -> bool:
    """Returns whether these workers can have a turn at once."""
    met = threading.Barrier(len(workers), timeout=limit_s)

    def travel(worker: str) -> bool:
        take(turns, direction, worker)
        try:
            with contextlib.suppress(threading.BrokenBarrierError):
                met.wait()
                return True
            return False
        finally:
            end(turns, direction, worker)

    with ThreadPoolExecutor(len(workers)) as threads:
        return all(threads.map(travel, workers))


@pytest.mark.parametrize("direction", ["pull", "push"])
def test_two_at_a_time_are_on_the_link(direction: str) -> None:
    turns = LinkSemaphore([SERVER], OTHERS)
    assert together(turns, direction, OTHERS[:2], limit_s=30)
    assert not together(turns, direction, OTHERS[:3], limit_s=0.2)
    # Every turn was given back.
    assert together(turns, direction, OTHERS[2:], limit_s=30)


def test_nobody_waits_who_is_not_in_the_way() -> None:
    turns = LinkSemaphore([SERVER, SERVER], [*OTHERS, SERVER])
    take(turns, "pull", OTHERS[0])
    take(turns, "pull", OTHERS[1])
    # The other direction, a worker of the server's own host.
    assert together(turns, "push", [OTHERS[0], SERVER, OTHERS[1]], limit_s=30)
    assert together(turns, "pull", [SERVER, SERVER], limit_s=30)


@pytest.mark.parametrize(
    ("servers", "workers"),
    [([SERVER, OTHERS[0]], OTHERS), ([SERVER], OTHERS[:2]), (["/CPU:0"], ["/CPU:0"] * 4)],
    ids=["servers on two hosts", "no more than may travel at once", "one host"],
)
def test_nobody_waits_without_need(servers: list[str], workers: list[str]) -> None:
    turns = LinkSemaphore(servers, workers)
    for direction in ("pull", "push"):
        for _ in range(2):
            assert together(turns, direction, workers, limit_s=30)
        for worker in workers * 2:
            take(turns, direction, worker)
