"""Plays through workers that share links and cores unevenly.

TCP divides a link among connections, but not into equal parts: who came first, and whose packets were dropped, makes a
difference, so that workers which began together come apart. Parts are drawn at random, always the same ones. What somebody
cannot use, since another place holds them up, the others have: max-min fairness, Bertsekas and Gallager, "Data networks", 1992,
section 6.5.2.
"""

import dataclasses
import math
import random
from collections.abc import Hashable, Mapping, Sequence

# Parts of a link are e to the power of a normal deviate with this standard deviation. With even parts workers stay in step,
# which those of the laboratory do not (`docs/decisions/0021`); between 0.5 and 1.5 little changes.
_UNEVENNESS = 1.5
# So many steps are played, and so many rounds at least; those of the first part do not count, in which the workers are still
# in step.
_STEPS, _ROUNDS = 240, 12
_SETTLING = 1 / 3


@dataclasses.dataclass(frozen=True)
class Flow:
    """Something that takes time.

    Attributes:
        places: Through which it goes at once; none if nobody else is in the way.
        seconds: How long it takes with all of them to itself.
        then: What follows it at once, whatever else of its phase is under way.
    """

    places: tuple[Hashable, ...]
    seconds: float
    then: "Flow | None" = None


@dataclasses.dataclass(frozen=True)
class Phase:
    """What a worker does at once; the phase ends with the last of it.

    Attributes:
        flows: All that it begins with.
        uneven: Whether those who share a place get parts that differ.
    """

    flows: tuple[Flow, ...]
    uneven: bool = False


# Chains begin together; the step ends with the last of them.
Step = Sequence[Sequence[Phase]]


@dataclasses.dataclass(eq=False)
class _Under:
    """A flow that is under way."""

    flow: Flow
    weight: float
    left: float
    worker: int
    chain: int
    uneven: bool


def shared(steps: Sequence[Step], capacity: Mapping[Hashable, float]) -> float:
    """Returns the seconds from one round to the next, a round being as many steps as there are workers.

    Args:
        steps: What each worker does, again and again; something of it takes time.
        capacity: How many flows have a place to themselves, each; 1 where nothing is said.
    """
    play = _Play(steps, capacity)
    rounds = max(_ROUNDS, _STEPS // len(steps))
    first, wanted = int(_SETTLING * rounds) * len(steps), rounds * len(steps)
    while len(play.ends) < wanted:
        play.go_on()
    return (play.ends[wanted - 1] - play.ends[first - 1]) / (wanted - first) * len(steps)


class _Play:
    def __init__(self, steps: Sequence[Step], capacity: Mapping[Hashable, float]):
        self._steps = [[[p for p in map(_timed, chain) if p.flows] for chain in step] for step in steps]
        self._capacity = capacity
        # Each worker's own, so that a little more time somewhere leaves what the others draw as it is.
        self._chances = [random.Random(worker) for worker in range(len(steps))]
        self._position = [[0] * len(step) for step in steps]
        self._under: list[_Under] = []
        self._open = [[0] * len(step) for step in steps]
        self._now_s, self.ends = 0.0, list[float]()
        for worker in range(len(steps)):
            self._begin(worker)

    def go_on(self) -> None:
        """Plays until something ends."""
        rates = fair_rates([(u.flow.places, u.weight) for u in self._under], self._capacity)
        passed = min(under.left / rate for under, rate in zip(self._under, rates, strict=True))
        self._now_s += passed
        ended: list[_Under] = []
        under_way, self._under = self._under, []
        for under, rate in zip(under_way, rates, strict=True):
            under.left -= passed * rate
            (ended if under.left <= 1e-9 * under.flow.seconds else self._under).append(under)
        for under in ended:
            if under.flow.then is not None:
                self._set_out(under.flow.then, under.worker, under.chain, under.uneven)
                continue
            self._open[under.worker][under.chain] -= 1
            if not self._open[under.worker][under.chain]:
                self._position[under.worker][under.chain] += 1
                self._enter(under.worker, under.chain)

    def _begin(self, worker: int) -> None:
        self._position[worker] = [0] * len(self._steps[worker])
        for chain in range(len(self._steps[worker])):
            self._enter(worker, chain)

    def _enter(self, worker: int, chain: int) -> None:
        at, phases = self._position[worker][chain], self._steps[worker][chain]
        if at < len(phases):
            phase = phases[at]
            for flow in phase.flows:
                self._set_out(flow, worker, chain, phase.uneven)
            self._open[worker][chain] = len(phase.flows)
        elif all(at == len(chain) for at, chain in zip(self._position[worker], self._steps[worker], strict=True)):
            self.ends.append(self._now_s)
            self._begin(worker)

    def _set_out(self, flow: Flow, worker: int, chain: int, uneven: bool) -> None:
        weight = math.exp(_UNEVENNESS * self._chances[worker].gauss(0, 1)) if uneven else 1.0
        self._under.append(_Under(flow, weight, flow.seconds, worker, chain, uneven))


def _timed(phase: Phase) -> Phase:
    """Leaves out what takes no time."""
    return dataclasses.replace(phase, flows=tuple(flow for flow in map(_timed_flow, phase.flows) if flow is not None))


def _timed_flow(flow: Flow) -> Flow | None:
    then = None if flow.then is None else _timed_flow(flow.then)
    return dataclasses.replace(flow, then=then) if flow.seconds > 0 else then


def fair_rates(flows: Sequence[tuple[tuple[Hashable, ...], float]], capacity: Mapping[Hashable, float]) -> list[float]:
    """Returns how fast each goes, 1 being as fast as alone: weighted max-min fairness.

    Args:
        flows: Places and weight of each.
        capacity: Of places; 1 where nothing is said.
    """
    rates = [0.0] * len(flows)
    through: dict[Hashable, set[int]] = {}
    weights: dict[Hashable, float] = {}
    for number, (places, weight) in enumerate(flows):
        for place in places:
            through.setdefault(place, set()).add(number)
            weights[place] = weights.get(place, 0.0) + weight
    free = {place: capacity.get(place, 1.0) for place in through}
    # Nobody goes faster than alone; the heaviest are the first to.
    by_weight = sorted(range(len(flows)), key=lambda number: flows[number][1])
    going = set(by_weight)
    while going:
        while by_weight[-1] not in going:
            by_weight.pop()
        level, fixed = 1 / flows[by_weight[-1]][1], {by_weight[-1]}
        for place, here in through.items():
            if free[place] < level * weights[place]:
                level, fixed = free[place] / weights[place], set(here)
        for number in fixed:
            places, weight = flows[number]
            rates[number] = level * weight
            for place in places:
                through[place].discard(number)
                free[place] -= rates[number]
                weights[place] -= weight
                if not through[place]:
                    del through[place]
        going -= fixed
    return rates
