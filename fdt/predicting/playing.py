"""Workers that do one thing after the other, each of which needs certain places to itself: played through, in order."""

import dataclasses
import heapq
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

# So many rounds are played; those of the first part do not count, in which the workers are still in step.
_ROUNDS = 12
_SETTLING = 1 / 3


@dataclasses.dataclass(frozen=True)
class Action:
    """Something that a worker does.

    Attributes:
        places: What it needs meanwhile.
        seconds: How long.
    """

    places: frozenset[Hashable]
    seconds: float


def played(workers: Sequence[Sequence[Action]], capacity: Mapping[Hashable, int]) -> float:
    """Returns the seconds from one round to the next, a round being as many steps as there are workers.

    Args:
        workers: What each does in a step, which it repeats; at least one action.
        capacity: How many may be at a place at once; 1 where nothing is said.
    """
    at: Counter[Hashable] = Counter()
    # Who came first goes first, if all that it needs is free.
    waiting = [(0.0, worker) for worker in range(len(workers))]
    running: list[tuple[float, int, Action]] = []
    position, ends, now_s = [0] * len(workers), list[float](), 0.0
    while len(ends) < _ROUNDS * len(workers):
        for since_s, worker in sorted(waiting):
            action = workers[worker][position[worker]]
            if all(at[place] < capacity.get(place, 1) for place in action.places):
                at.update(action.places)
                waiting.remove((since_s, worker))
                heapq.heappush(running, (now_s + action.seconds, worker, action))
        now_s, worker, action = heapq.heappop(running)
        at.subtract(action.places)
        position[worker] = (position[worker] + 1) % len(workers[worker])
        if position[worker] == 0:
            ends.append(now_s)
        waiting.append((now_s, worker))
    first = int(_SETTLING * len(ends))
    return (ends[-1] - ends[first - 1]) / (len(ends) - first) * len(workers)
