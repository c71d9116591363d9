"""Computes how long a step will take on N workers from times measured on one worker.

Notation as in the literature: S bytes of gradients, B bytes per second and direction of one host's link, a its latency,
T = S / B, N workers, b rows of one of the script's batches. In every form a step is one update with one of the script's
batches: N asynchronous workers make N steps in a round.

Sources: ring all-reduce, Patarasu and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.
Parameter servers as a closed queueing network with links that are shared fairly; its mean values are exact for such
networks: Reiser and Lavenberg, "Mean-value analysis of closed multichain queuing networks", 1980; bounds: Denning and Buzen,
"The operational analysis of queueing network models", 1978. Largest of N normal deviates: sigma * sqrt(2 ln N).
"""

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence

from fdt.base.memory_need import MemoryNeed
from fdt.base.sharding import deal, fill, is_cut_by_rows, is_even, loads_of
from fdt.forecast.links import Network
from fdt.forecast.sharing import Flow, Phase, Step, shared

RING, CENTRAL, SHARDED = "ring", "central", "sharded"
# (form, mode), in the order in which they are shown.
FORMS = ((RING, "sync"), (CENTRAL, "sync"), (SHARDED, "sync"), (CENTRAL, "async"), (SHARDED, "async"))
# The part of a step's computation before the first gradient: the forward pass and the last layer's backward pass.
_BEFORE_FIRST_GRADIENT = 1 / 3
# Requests of a step that wait for each other, without the bytes they move: to pull, to compute, to push.
_REQUESTS = 3
# The factor by which Gloo's collectives take longer than their bytes need: best, mean and worst; measured in the laboratory
# with 2.1 MB and 2, 4 and 8 ranks (`docs/decisions/0021`). Two ranks have one connection, on which a rank's "ready to receive"
# waits behind the bytes that it sends; in larger rings the two go to different neighbours.
_SUMMING = (1.0, 1.0, 1.07)
_GATHERING = (1.0, 1.08, 1.2)
_GATHERING_OF_TWO = (1.0, 1.85, 2.2)
# Seconds that an exchange of a small value within a step takes in addition to the network's latency: two ranks on two cores
# (`docs/decisions/0043`).
RENDEZVOUS_S = 3e-4
# The most concurrent transfers that are simulated, since the simulation's time grows with their square: this number of workers
# with one server, or its square root of hosts with a server each.
_PLAYED = 64
# The least speed-up for which doubling the workers is worth it.
_WORTH = 1.1


@dataclasses.dataclass(frozen=True)
class Timed:
    """The measured time of a step with a number of rows.

    Attributes:
        rows: Rows of the batch.
        seconds: Mean over several steps.
        deviation: Standard deviation of means over a tenth of a second, in seconds.
    """

    rows: int
    seconds: float
    deviation: float = 0.0


@dataclasses.dataclass(frozen=True)
class Workload:
    """A script's times, measured on one worker with as many threads as each worker will have.

    Attributes:
        script: Its name.
        batch: Rows of one of its batches.
        steps: How many steps it makes; None if its data do not tell.
        threads: Threads that one operation could use; None for as many as a pool's workers have.
        step: Times of whole steps, for three batch sizes or more.
        gradient: Seconds of a step on one of the script's batches without the update, as an asynchronous worker computes it.
        update: Seconds that one parameter server takes to apply a gradient to the whole model.
        dense: Bytes of each tensor whose gradient is dense.
        tables: Bytes of each tensor whose gradient travels as rows.
        row_bytes: Bytes of these gradients for one row of the batch.
        local: Seconds of a step in place, with all threads of the machine; speed-ups are relative to it.
        exchanges: How often synchronous workers wait for each other in a step apart from the exchange of gradients: for
            example in layers that normalise.
        exchanged_bytes: Bytes of these exchanges.
        by_rows: Those of `tables` of which asynchronous workers pull the rows that a batch uses.
        cut: Those of `by_rows` that several servers may hold parts of, each with the least bytes of a part.
        memory: What synchronous workers need of memory; None if that is not known.
    """

    script: str
    batch: int
    steps: int | None
    threads: int | None
    step: tuple[Timed, ...]
    gradient: float
    update: float
    dense: tuple[int, ...]
    tables: tuple[int, ...]
    row_bytes: float
    local: float
    exchanges: int = 0
    exchanged_bytes: int = 0
    by_rows: tuple[int, ...] = ()
    cut: tuple[tuple[int, int], ...] = ()
    memory: MemoryNeed | None = None

    @property
    def pulled_bytes(self) -> float:
        """Bytes that a worker pulls from parameter servers for a step; rows as many as it pushes gradients of rows."""
        rows = self.row_bytes * self.batch if self.by_rows else 0.0
        return sum(self.dense) + sum(self.tables) - sum(self.by_rows) + rows

    @property
    def pushed_bytes(self) -> float:
        """Bytes that a worker pushes for one of the script's batches."""
        return sum(self.dense) + self.row_bytes * self.batch


@dataclasses.dataclass(frozen=True)
class Range:
    """Seconds: best case, estimate, worst case."""

    best: float
    estimate: float
    worst: float

    def over(self, divisor: float) -> "Range":
        """Returns the range divided by a number."""
        return Range(self.best / divisor, self.estimate / divisor, self.worst / divisor)


@dataclasses.dataclass(frozen=True)
class Forecast:
    """The prediction for one form and number of workers.

    Attributes:
        form: RING, CENTRAL or SHARDED.
        mode: "sync" or "async".
        workers: How many.
        hosts: How many hosts the workers fill, without that of a central server.
        step: Seconds for each of the script's batches.
        speedup: Relative to the script in place.
        efficiency: Speed-up for each worker.
        seconds: For all steps of the script; None if their number is not known.
        cost: Cost of `seconds`, in the unit of the price; None without a price.
    """

    form: str
    mode: str
    workers: int
    hosts: int
    step: Range
    speedup: float
    efficiency: float
    seconds: float | None = None
    cost: float | None = None


def forecast(
    workload: Workload,
    network: Network,
    form: str,
    mode: str,
    workers: int,
    batch: str = "global",
    price: float | None = None,
) -> Forecast:
    """Predicts one form.

    Args:
        workload: What was measured.
        network: Between the hosts.
        form: RING, CENTRAL or SHARDED.
        mode: "sync" or "async".
        workers: N; a central parameter server has a host of its own in addition.
        batch: Whether the ring divides the script's batch ("global") or each worker gets one ("per-worker"), as with servers.
        price: Of one host for an hour.
    """
    if form == RING:
        step = ring(workload, network, workers, batch)
    elif mode == "sync":
        step = servers_in_step(workload, network, workers, form)
    else:
        step = servers_at_will(workload, network, workers, form)
    speedup = workload.local / step.estimate
    seconds = None if workload.steps is None else workload.steps * step.estimate
    hosts = network.hosts(workers)
    cost = None if seconds is None or price is None else price * (hosts + (form == CENTRAL)) * seconds / 3600
    return Forecast(form, mode, workers, hosts, step, speedup, speedup / workers, seconds, cost)


# ---- the forms ------------------------------------------------------------------------------------------------------


def ring(workload: Workload, network: Network, workers: int, batch: str = "global") -> Range:
    """Returns the seconds of a step by all-reduce.

    2 (N - 1) a + 2 (N - 1) / N * T; all ranks gather rows of tables: (N - 1) a + (N - 1) / N * T of all their rows; and Gloo's
    overhead on both. An exchange within a layer goes from each rank to all, (N - 1) / B of its bytes, and each time takes a and
    the time to wake processes up; none of it is hidden. Ranks of one host are neighbours in the ring, so each host has one
    incoming and one outgoing stream, however many ranks it has. With the global batch each worker computes on its share of one
    of the script's batches; with a batch per worker on a whole one, and one step of all workers counts as N steps.
    """
    steps = workers if batch == "per-worker" else 1
    rows = workload.batch * steps / workers
    compute = network.contention * compute_seconds(workload.step, rows)
    if workers == 1:
        return Range(compute, compute, compute)
    share = (workers - 1) / workers
    summing = 2 * (workers - 1) * network.latency + 2 * share * sum(workload.dense) / network.bandwidth
    gathering = 0.0
    if workload.tables:
        gathering = (workers - 1) * network.latency
        gathering += share * workload.row_bytes * workload.batch * steps / network.bandwidth
    compute += workload.exchanges * (network.latency + RENDEZVOUS_S)
    compute += (workers - 1) * workload.exchanged_bytes / network.bandwidth
    least, usual, most = (
        longer * summing + longer_rows * gathering
        for longer, longer_rows in zip(_SUMMING, _GATHERING_OF_TWO if workers == 2 else _GATHERING, strict=True)
    )
    slowest = _slowest(workload, network, workers)
    best = max(compute, compute * _BEFORE_FIRST_GRADIENT + least)
    hidden = network.overlap * (compute + least - best)
    return Range(best, compute + usual - hidden + slowest / 2, compute + most + slowest).over(steps)


def servers_in_step(workload: Workload, network: Network, workers: int, form: str) -> Range:
    """Returns the seconds of a step if all workers pull together and wait for the last push (`--max-delay 0`).

    For a round of N steps. Best: one worker's transfers overlap with another's computation, T_c + (N + 1) T + T_u. Worst: all
    transfers at once, T_c + 2 N T + T_u.
    """
    traffic = _traffic(workload, network, workers, form)
    pause = network.contention * workload.gradient + 2 * network.latency
    together = pause + traffic.all_pull + traffic.all_push + workers * traffic.update
    alone = min(traffic.own_pull, traffic.own_push)
    best = pause + max(traffic.all_pull, traffic.all_push) + alone + traffic.update
    slowest, queues = _slowest(workload, network, workers), _REQUESTS * network.queueing
    return Range(min(best, together), together + queues + slowest / 2, together + queues + slowest).over(workers)


def servers_at_will(workload: Workload, network: Network, workers: int, form: str) -> Range:
    """Returns the seconds of a step if every worker pulls, computes and pushes at its own pace.

    Best, for a round of N steps: max(T_c + 2 T + T_u, N T, N T_u). Worst: all transfers at once;
    with sharded servers, one after the other. The estimate is simulated (`fdt.forecast.sharing`).
    """
    traffic = _traffic(workload, network, workers, form)
    pause = network.contention * workload.gradient + 2 * network.latency
    chain = pause + traffic.own_push + traffic.update + traffic.own_pull
    best = max(chain, traffic.busiest_link, workers * traffic.update)
    worst = pause + _REQUESTS * network.queueing + traffic.all_pull + traffic.all_push + workers * traffic.update
    estimate = _estimate(workload, network, workers, form, best)
    if form == SHARDED:
        # Worst case: one worker pulls in the direction of a link in which another pushes, and the other direction is idle.
        queues = 2 * (network.hosts(workers) - 1) * network.queueing
        worst = max(worst, pause + workers * (traffic.own_pull + traffic.own_push + queues + traffic.update))
    return Range(best, min(max(estimate, best), worst), max(best, worst)).over(workers)


@dataclasses.dataclass(frozen=True)
class _Traffic:
    """Seconds of transfers and updates.

    Attributes:
        own_pull: One worker's pull with no other worker on the links; the mean of all workers.
        own_push: One worker's push with no other worker on the links; the mean of all workers.
        all_pull: All workers' pulls at once.
        all_push: All workers' pushes at once.
        busiest_link: The transfers of a round in the busiest direction of a link.
        update: One step's update on the busiest server.
    """

    own_pull: float
    own_push: float
    all_pull: float
    all_push: float
    busiest_link: float
    update: float


def _traffic(workload: Workload, network: Network, workers: int, form: str) -> _Traffic:
    pull, push = workload.pulled_bytes / network.bandwidth, workload.pushed_bytes / network.bandwidth
    update = network.contention * workload.update
    if form == CENTRAL:
        all_pull, all_push = workers * pull, workers * push
        return _Traffic(pull, push, all_pull, all_push, max(all_pull, all_push), update)
    # Each host has a server: its own workers' requests do not use the link.
    hosts, beside = network.hosts(workers), min(workers, network.slots)
    shares = _shares(workload, hosts)
    others, largest = workers - beside, max(shares)
    at_once = max(others * largest, beside * (1 - min(shares)))
    busiest = max(
        max(
            others * share * pull + beside * (1 - share) * push,
            others * share * push + beside * (1 - share) * pull,
        )
        for share in shares
    )
    away = (hosts - 1) / hosts
    return _Traffic(away * pull, away * push, at_once * pull, at_once * push, busiest, largest * update)


def _shares(workload: Workload, hosts: int) -> list[float]:
    """Returns each host's server's fraction of the parameters."""
    loads = shard_loads(workload.dense, workload.tables, hosts, workload.cut)
    return [load / sum(loads) for load in loads]


def _estimate(workload: Workload, network: Network, workers: int, form: str, best: float) -> float:
    """Returns the simulated seconds of a round of N steps; for more workers, extrapolates from the best case."""
    hosts = network.hosts(workers)
    if form == CENTRAL:
        # With more workers the link, or the server, is never idle.
        return _played(workload, network, workers, {-1: 1.0}) if workers <= _PLAYED else best
    if hosts == 1:
        return best
    most = max(2, math.isqrt(_PLAYED // network.slots))
    if hosts > most:
        fewer = servers_at_will(workload, network, most * network.slots, SHARDED)
        return best * fewer.estimate / fewer.best
    return _played(workload, network, workers, dict(enumerate(_shares(workload, hosts))))


def _played(workload: Workload, network: Network, workers: int, shares: Mapping[int, float]) -> float:
    """Simulates a round of N steps whose transfers share the links of all hosts; returns its seconds.

    Args:
        workload: What was measured.
        network: Between the hosts.
        workers: N; host h has the `slots` workers from h * slots on.
        shares: The fraction of the parameters on each host's server; hosts without workers have numbers below 0.
    """
    pull, push = workload.pulled_bytes / network.bandwidth, workload.pushed_bytes / network.bandwidth
    request = Phase((Flow((), network.latency * 2 / _REQUESTS + network.queueing),))
    compute = Phase((Flow(("cores",), workload.gradient),))
    update = Phase(tuple(Flow((("server", h),), s * network.contention * workload.update) for h, s in shares.items()))

    def exchanged(own: int, host: int, share: float) -> Flow:
        """Returns a push, followed by its update and the transfer of the new parameters."""
        then = Flow((("out", host), ("in", own)), share * pull) if host != own else None
        applied = Flow((("server", host),), share * network.contention * workload.update, then)
        return Flow((("out", own), ("in", host)), share * push, applied) if host != own else applied

    def step(own: int) -> Step:
        if chained:
            # With servers on several hosts, workers that began together stay in step, as in the laboratory.
            flows = tuple(exchanged(own, host, share) for host, share in shares.items())
            return [[request, compute, Phase(flows, uneven=len(shares) == 1)]]
        away = [(host, share) for host, share in shares.items() if host != own]
        pulled = Phase(tuple(Flow((("out", h), ("in", own)), s * pull) for h, s in away), uneven=True)
        pushed = Phase(tuple(Flow((("out", own), ("in", h)), s * push) for h, s in away), uneven=True)
        return [[request, pulled, request, compute, request, pushed, update]]

    # With chained steps, each server sends the parameters after a push to the next step (decision 0084). With one server and
    # more than two workers, the link semaphore limits transfers instead.
    chained = len(shares) > 1 or workers <= 2
    steps = [step(worker // network.slots) for worker in range(workers)]
    return shared(steps, {"cores": workers / network.contention})


# ---- what they are made of ------------------------------------------------------------------------------------------


def compute_seconds(measured: Sequence[Timed], rows: float) -> float:
    """Returns the seconds of a step on a number of rows: c0 + c1 * rows, fitted to minimise relative errors.

    Args:
        measured: Times for different numbers of rows; a single one is scaled.
        rows: Any number above 0.
    """
    if len({timed.rows for timed in measured}) == 1:
        return measured[0].seconds * rows / measured[0].rows
    weights = [1 / timed.seconds**2 for timed in measured]
    total = sum(weights)
    mean_rows = sum(w * t.rows for w, t in zip(weights, measured, strict=True)) / total
    mean_seconds = sum(w * t.seconds for w, t in zip(weights, measured, strict=True)) / total
    square = sum(w * (t.rows - mean_rows) ** 2 for w, t in zip(weights, measured, strict=True))
    product = sum(w * (t.rows - mean_rows) * (t.seconds - mean_seconds) for w, t in zip(weights, measured, strict=True))
    slope = max(0.0, product / square)
    # Noise may make the fit fall faster than the number of rows, which no computation does.
    floor = min(timed.seconds * min(1.0, rows / timed.rows) for timed in measured)
    return max(mean_seconds + slope * (rows - mean_rows), floor)


def shard_loads(
    dense: Sequence[int], tables: Sequence[int], shards: int, cut: Sequence[tuple[int, int]] = ()
) -> list[float]:
    """Returns the bytes on each parameter server, for an elementwise optimizer (with others, no dense tensor is cut).

    Args:
        dense: Bytes of each tensor that may be cut anywhere.
        tables: Bytes of each other tensor.
        shards: How many servers.
        cut: Those of `tables` that may be cut between rows, each with the least bytes of a part.
    """
    in_parts = [num_bytes for num_bytes, least in cut if is_cut_by_rows(num_bytes, least, shards)]
    whole = list((Counter(tables) - Counter(in_parts)).elements())
    sizes, of_rows = [*dense, *whole], sum(in_parts) / shards
    loads = loads_of(sizes, deal(sizes, shards))
    if is_even(loads):
        return [load + of_rows for load in loads]
    loads = loads_of(whole, deal(whole, shards))
    return [load + more + of_rows for load, more in zip(loads, fill(loads, sum(dense)), strict=True)]


def can_be_sharded(workload: Workload, shards: int) -> bool:
    """Returns whether a model can have this many parameter servers: up to one per tensor, or more if each gets a part."""
    return (
        shards <= len(workload.dense) + len(workload.tables)
        or min(shard_loads(workload.dense, workload.tables, shards, workload.cut)) > 0
    )


def _slowest(workload: Workload, network: Network, workers: int) -> float:
    """Returns by how many seconds the slowest of N workers is expected to be behind the mean.

    A step that takes c times as long because workers share cores counts as c independent pieces of work, whose variances
    add up.
    """
    deviation = max(timed.deviation for timed in workload.step) * math.sqrt(network.contention)
    return deviation * math.sqrt(2 * math.log(workers))


# ---- what follows ---------------------------------------------------------------------------------------------------


def fastest(forecasts: Sequence[Forecast]) -> Forecast:
    """Returns the forecast with the largest speed-up; among equal ones, that with the fewest workers."""
    return max(forecasts, key=lambda forecast: (forecast.speedup, -forecast.workers))


def pays_up_to(forecasts: Sequence[Forecast]) -> int:
    """Returns the number of workers beyond which more are not worth it.

    That is where doubling the workers makes a step less than a tenth faster.

    Args:
        forecasts: Forecasts of one form.
    """
    ordered = sorted(forecasts, key=lambda forecast: forecast.workers)
    for one, more in itertools.pairwise(ordered):
        doublings = math.log2(more.workers / one.workers)
        if more.speedup < one.speedup * _WORTH**doublings:
            return one.workers
    return ordered[-1].workers
