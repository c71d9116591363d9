"""Simulates workers that share links and cores unevenly.

TCP divides a link among connections, but not equally: the order of arrival and dropped packets make a difference, so that
workers that began together drift apart. Shares are drawn at random with fixed seeds. If a flow cannot use its share of a place
because another place limits it, the other flows get the rest: max-min fairness, Bertsekas and Gallager, "Data networks", 1992,
section 6.5.2.
"""

import dataclasses
import math
import random
from collections.abc import Hashable, Mapping, Sequence

# Weights of flows are e to the power of a normal deviate with this standard deviation. With equal weights workers would stay in
# step, unlike those in the laboratory (`docs/decisions/0021`); between 0.5 and 1.5 results hardly change.
_UNEVENNESS = 1.5
# How many steps are simulated, and the least number of rounds; the first third does not count, since the workers are still in
# step.
_STEPS, _ROUNDS = 240, 12
_SETTLING = 1 / 3


@dataclasses.dataclass(frozen=True)
class Flow:
    """A transfer, a computation or another activity that takes time.

    Attributes:
        places: The links, cores or servers that it uses at once; empty if it shares none.
        seconds: How long it takes if no other flow uses these places.
        then: The flow that begins as soon as this one ends, while others of its phase may still run.
    """

    places: tuple[Hashable, ...]
    seconds: float
    then: "Flow | None" = None


@dataclasses.dataclass(frozen=True)
class Phase:
    """Flows that a worker runs in parallel; the phase ends when the last of them ends.

    Attributes:
        flows: The flows that begin with the phase.
        uneven: Whether flows that share a place get different weights.
    """

    flows: tuple[Flow, ...]
    uneven: bool = False


# Chains of phases that begin together; the step ends when the last chain ends.
Step = Sequence[Sequence[Phase]]


@dataclasses.dataclass(eq=False)
class _Under:
    """A running flow."""

    flow: Flow
    weight: float
    left: float
    worker: int
    chain: int
    uneven: bool


def shared(steps: Sequence[Step], capacity: Mapping[Hashable, float]) -> float:
    """Returns the mean seconds of a round, which is as many steps as there are workers.

    Args:
        steps: The step that each worker repeats; at least one of its flows takes time.
        capacity: How many flows a place serves at full speed; 1 if not given.
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
        # One generator per worker, so that a change in one worker's times does not change other workers' draws.
        self._chances = [random.Random(worker) for worker in range(len(steps))]
        self._position = [[0] * len(step) for step in steps]
        self._under: list[_Under] = []
        self._open = [[0] * len(step) for step in steps]
        self._now_s, self.ends = 0.0, list[float]()
        for worker in range(len(steps)):
            self._begin(worker)

    def go_on(self) -> None:
        """Simulates until the next flow ends."""
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
    """Returns a phase without flows that take no time."""
    return dataclasses.replace(phase, flows=tuple(flow for flow in map(_timed_flow, phase.flows) if flow is not None))


def _timed_flow(flow: Flow) -> Flow | None:
    then = None if flow.then is None else _timed_flow(flow.then)
    return dataclasses.replace(flow, then=then) if flow.seconds > 0 else then


def fair_rates(flows: Sequence[tuple[tuple[Hashable, ...], float]], capacity: Mapping[Hashable, float]) -> list[float]:
    """Returns each flow's speed by weighted max-min fairness; 1 is its speed alone.

    Args:
        flows: Places and weight of each flow.
        capacity: Capacity of places; 1 if not given.
    """
    rates = [0.0] * len(flows)
    through: dict[Hashable, set[int]] = {}
    weights: dict[Hashable, float] = {}
    for number, (places, weight) in enumerate(flows):
        for place in places:
            through.setdefault(place, set()).add(number)
            weights[place] = weights.get(place, 0.0) + weight
    free = {place: capacity.get(place, 1.0) for place in through}
    # No flow is faster than alone; the heaviest flows reach that speed first.
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
