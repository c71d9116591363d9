"""Turns on the link of the parameter servers' host."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from nfdt.turns import Turns

HOSTS = [f"/job:fdt/replica:0/task:{rank}/device:CPU:" for rank in range(5)]
SERVER, OTHERS = HOSTS[0] + "0", [host + "0" for host in HOSTS[1:]]


def together(turns: Turns, direction: str, number: int, limit_s: float) -> bool:
    """Returns whether so many workers can have a turn at once."""
    met = threading.Barrier(number, timeout=limit_s)

    def travel(worker: str) -> bool:
        with getattr(turns, direction)(worker), contextlib.suppress(threading.BrokenBarrierError):
            met.wait()
            return True
        return False

    with ThreadPoolExecutor(number) as threads:
        return all(threads.map(travel, OTHERS[:number]))


@pytest.mark.parametrize("direction", ["out", "into"])
def test_two_at_a_time_are_on_the_link(direction: str) -> None:
    assert together(Turns([SERVER]), direction, 2, limit_s=30)
    assert not together(Turns([SERVER]), direction, 3, limit_s=0.2)


def test_nobody_waits_who_is_not_in_the_way() -> None:
    turns = Turns([SERVER, HOSTS[0] + "1"])
    # The other direction, a worker of the server's own host.
    with turns.out(OTHERS[0]), turns.out(OTHERS[1]), turns.into(OTHERS[0]), turns.out(HOSTS[0] + "2"):
        pass
    assert together(Turns([SERVER, OTHERS[0]]), "out", 4, limit_s=30)
    alone = Turns(["/CPU:0"])
    with alone.out("/CPU:1"), alone.out("/CPU:2"), alone.out("/CPU:3"):
        pass
