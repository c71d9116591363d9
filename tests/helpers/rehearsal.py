"""Asynchronous training without threads: which gradient meets which delay is a list of numbers.

The parameter servers are the real ones; only the order of things is given instead of left to the machine. A lag says how many
versions before its push a gradient's parameters were pulled.
"""

import collections
import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from nfdt.feed import Arrays
from nfdt.servers import ParameterServers
from nfdt.shard import Pushed
from nfdt.step import Pulled


def rehearse(
    servers: ParameterServers, lags: Iterable[int], batch: Callable[[int], Sequence[Any]]
) -> Iterator[list[Pushed]]:
    """Trains; yields what became of each push.

    Args:
        servers: With at least one replica.
        lags: One for each push; more than there have been versions counts as all of them.
        batch: Returns the inputs of push i, so that every rule sees the same data.
    """
    history: collections.deque[Pulled] = collections.deque([servers.pull()])
    longest = 0
    for number, lag in enumerate(lags):
        longest = max(longest, lag)
        pulled = history[-1 - min(lag, len(history) - 1)]
        inputs = [tf.convert_to_tensor(array) for array in batch(number)]
        yield servers.step(0, Arrays(inputs), np.arange(len(inputs[0])), pulled).pushed
        history.append(servers.pull())
        # Lags are not known beforehand; what is older than twice the longest so far is not expected to be asked for.
        while len(history) > 2 * longest + 64:
            history.popleft()


def lags_of(schedule: Iterable[int]) -> Iterator[int]:
    """Turns the order in which workers push into lags; each pulls right after its push, all first pull at version 0."""
    pulled: dict[int, int] = {}
    for version, worker in enumerate(schedule):
        yield version - pulled.get(worker, 0)
        pulled[worker] = version + 1


def round_robin(num_workers: int, num_pushes: int) -> Iterator[int]:
    """Yields worker numbers in turn."""
    return (push % num_workers for push in range(num_pushes))


def timed(service_s: Sequence[Callable[[], float]], num_pushes: int) -> Iterator[int]:
    """Yields worker numbers in the order in which they would finish.

    Args:
        service_s: For each worker what tells the seconds of its next step: `lambda: 4.0` beside `lambda: 1.0` is a straggler.
        num_pushes: How many.
    """
    queue = [(service(), worker) for worker, service in enumerate(service_s)]
    heapq.heapify(queue)
    for _ in range(num_pushes):
        now, worker = heapq.heappop(queue)
        yield worker
        heapq.heappush(queue, (now + service_s[worker](), worker))
