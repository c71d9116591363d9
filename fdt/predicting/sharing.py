"""Workers that do one thing after the other at places which all who are there share, unevenly: played through.

TCP divides a link among connections, but not into equal parts: who came first, and whose packets were dropped, makes a
difference, so that workers which began together come apart. Parts are drawn at random, always the same ones.
"""

import dataclasses
import math
import random
from collections.abc import Hashable, Mapping, Sequence

# Parts of a link are e to the power of a normal deviate with this standard deviation. With even parts workers stay in step,
# which those of the laboratory do not (`docs/decisions/0021`); between 0.5 and 1.5 little changes.
_UNEVENNESS = 1.5
# So many rounds are played; those of the first part do not count, in which the workers are still in step.
_ROUNDS = 60
_SETTLING = 1 / 3


@dataclasses.dataclass(frozen=True)
class Phase:
    """Something that a worker does.

    Attributes:
        place: Where; None if nobody else is in the way.
        seconds: How long it takes with the place to itself.
        uneven: Whether those who share the place get parts that differ.
    """

    place: Hashable | None
    seconds: float
    uneven: bool = False


def shared(step: Sequence[Phase], workers: int, capacity: Mapping[Hashable, float]) -> float:
    """Returns the seconds from one round to the next, a round being as many steps as there are workers.

    Args:
        step: What each does, again and again; something of it takes time.
        workers: How many.
        capacity: How many have a place to themselves, each; 1 where nothing is said.
    """
    phases = [phase for phase in step if phase.seconds > 0]
    # Each worker's own, so that a little more time somewhere leaves what the others draw as it is.
    chances = [random.Random(worker) for worker in range(workers)]

    def drawn(worker: int, phase: Phase) -> float:
        return math.exp(_UNEVENNESS * chances[worker].gauss(0, 1)) if phase.uneven else 1.0

    position = [0] * workers
    left = [phases[0].seconds] * workers
    weights = [drawn(worker, phases[0]) for worker in range(workers)]
    now_s, ends = 0.0, list[float]()
    while len(ends) < _ROUNDS * workers:
        there: dict[Hashable, float] = {}
        for worker, at in enumerate(position):
            place = phases[at].place
            if place is not None:
                there[place] = there.get(place, 0.0) + weights[worker]
        rates = [
            1.0 if (place := phases[at].place) is None else min(1.0, capacity.get(place, 1.0) * weight / there[place])
            for at, weight in zip(position, weights, strict=True)
        ]
        passed = min(seconds / rate for seconds, rate in zip(left, rates, strict=True))
        now_s += passed
        for worker, rate in enumerate(rates):
            left[worker] -= passed * rate
            if left[worker] > 1e-9 * phases[position[worker]].seconds:
                continue
            position[worker] = (position[worker] + 1) % len(phases)
            phase = phases[position[worker]]
            left[worker], weights[worker] = phase.seconds, drawn(worker, phase)
            if position[worker] == 0:
                ends.append(now_s)
    first = int(_SETTLING * len(ends))
    return (ends[-1] - ends[first - 1]) / (len(ends) - first) * workers
