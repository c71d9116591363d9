"""The arithmetic of predictions: limits that must hold, and examples worked out by hand."""

import dataclasses
import importlib
import itertools
from pathlib import Path

import pytest

from fdt.errors import UsageError
from fdt.forecast.links import OVERLAP, Network
from fdt.forecast.quantities import bandwidth, duration
from fdt.forecast.step_time import (
    CENTRAL,
    FORMS,
    RENDEZVOUS_S,
    RING,
    SHARDED,
    Forecast,
    Range,
    Timed,
    Workload,
    compute_seconds,
    fastest,
    forecast,
    pays_up_to,
    ring,
    servers_at_will,
    servers_in_step,
    shard_loads,
)

# 1 MB of gradients in eight equal tensors; 0.1 s a step of 80 rows, all of it for rows; updates cost nothing.
EVEN = Workload(
    script="train.py",
    batch=80,
    steps=1000,
    threads=1,
    step=(Timed(20, 0.025), Timed(40, 0.05), Timed(80, 0.1)),
    gradient=0.1,
    update=0.0,
    dense=(125_000,) * 8,
    tables=(),
    row_bytes=0.0,
    local=0.1,
)
SLOW = Network(bandwidth=1e6)
INSTANT = Network(bandwidth=1e18)
WORKERS = [1, 2, 4, 8]


@pytest.mark.parametrize("workers", WORKERS)
def test_without_a_network_the_ring_divides_the_computation(workers: int) -> None:
    found = ring(EVEN, INSTANT, workers)
    assert found.best == pytest.approx(0.1 / workers)
    assert found.estimate == pytest.approx(0.1 / workers)
    assert found.worst == pytest.approx(0.1 / workers)


@pytest.mark.parametrize(("form", "mode"), [pair for pair in FORMS if pair[0] != RING])
@pytest.mark.parametrize("workers", WORKERS)
def test_without_a_network_servers_divide_the_steps(form: str, mode: str, workers: int) -> None:
    found = forecast(EVEN, INSTANT, form, mode, workers)
    assert found.step.estimate == pytest.approx(0.1 / workers)
    assert found.speedup == pytest.approx(workers)
    assert found.efficiency == pytest.approx(1)


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_what_layers_exchange_is_waited_for(workers: int) -> None:
    network = Network(bandwidth=1e6, latency=0.01)
    with_layers = dataclasses.replace(EVEN, exchanges=40, exchanged_bytes=20_000)
    before, found = (ring(each, network, workers) for each in (EVEN, with_layers))
    waiting = 40 * (0.01 + RENDEZVOUS_S) + (workers - 1) * 0.02
    assert found.estimate == pytest.approx(before.estimate + waiting)
    assert ring(with_layers, network, 1) == ring(EVEN, network, 1)


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_ring_moves_what_the_formula_says(workers: int) -> None:
    network = Network(bandwidth=1e6, latency=0.01)
    exchange = 2 * (workers - 1) * 0.01 + 2 * (workers - 1) / workers * 1.0
    found = ring(EVEN, network, workers)
    assert found.estimate == pytest.approx(0.1 / workers + exchange)
    assert found.best == pytest.approx(0.1 / workers / 3 + exchange)


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_a_batch_each_makes_the_ring_exchange_less_often(workers: int) -> None:
    found = ring(EVEN, SLOW, workers, "per-worker")
    assert found.estimate * workers == pytest.approx(0.1 + 2 * (workers - 1) / workers)


def test_of_a_table_that_goes_by_rows_as_many_are_pulled_as_pushed() -> None:
    table = dataclasses.replace(EVEN, dense=(1,), tables=(10_000_000, 500), row_bytes=1000.0)
    assert table.pulled_bytes == 10_000_501
    by_rows = dataclasses.replace(table, by_rows=(10_000_000,))
    assert by_rows.pulled_bytes == by_rows.pushed_bytes + 500 == 501 + 1000 * EVEN.batch


def test_ring_gathers_the_rows_of_tables() -> None:
    table = dataclasses.replace(EVEN, dense=(1,), tables=(10_000_000,), row_bytes=1000.0)
    # Each of 4 workers receives the rows of the three others: 3/4 of 80 kB.
    found = ring(table, SLOW, 4)
    assert found.best == pytest.approx(0.1 / 4 / 3 + 0.75 * 0.08, abs=1e-5)
    assert 0.1 / 4 + 0.75 * 0.08 < found.estimate < 0.1 / 4 + 0.75 * 0.08 * 1.1


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_a_central_servers_link_is_the_limit(workers: int) -> None:
    """N T a round and direction, however they take turns; and never worse than all at once."""
    found = servers_at_will(EVEN, SLOW, workers, CENTRAL)
    assert found.best == pytest.approx(max(0.1 + 2 * 1.0, workers * 1.0) / workers)
    assert found.worst == pytest.approx((0.1 + 2 * workers * 1.0) / workers)
    in_step = servers_in_step(EVEN, SLOW, workers, CENTRAL)
    assert in_step.best == pytest.approx((0.1 + (workers + 1) * 1.0) / workers)
    assert in_step.worst == pytest.approx((0.1 + 2 * workers * 1.0) / workers)


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_even_shards_move_as_much_as_the_ring(workers: int) -> None:
    found = servers_at_will(EVEN, SLOW, workers, SHARDED)
    assert found.best * workers == pytest.approx(0.1 + 2 * (workers - 1) / workers * 1.0)


def test_one_large_table_makes_sharding_useless_and_one_large_tensor_does_not() -> None:
    small = (1,) * 7
    cut = dataclasses.replace(EVEN, dense=(999_993, *small))
    uneven = dataclasses.replace(EVEN, dense=small, tables=(999_993,))
    even, of_parts, found = (servers_at_will(w, SLOW, 8, SHARDED) for w in (EVEN, cut, uneven))
    assert of_parts == even
    assert found.best > 3 * even.best and found.estimate > even.estimate


def test_an_update_that_is_slow_is_the_limit() -> None:
    slow = dataclasses.replace(EVEN, update=0.5)
    assert servers_at_will(slow, INSTANT, 8, CENTRAL).best == pytest.approx(0.5)
    assert servers_at_will(slow, INSTANT, 8, SHARDED).best == pytest.approx(0.5 / 8)


@pytest.mark.parametrize(("form", "mode"), FORMS)
@pytest.mark.parametrize("rate", [1e4, 1e6, 1e8])
def test_ranges_are_ordered_and_a_faster_network_is_never_slower(form: str, mode: str, rate: float) -> None:
    noisy = dataclasses.replace(EVEN, step=tuple(dataclasses.replace(t, deviation=0.01) for t in EVEN.step))
    for workers in WORKERS:
        one, faster = (forecast(noisy, Network(r, 1e-4), form, mode, workers).step for r in (rate, 2 * rate))
        assert one.best <= one.estimate <= one.worst
        assert faster.estimate <= one.estimate


def test_one_worker_is_the_script_itself() -> None:
    assert ring(EVEN, SLOW, 1) == Range(*[pytest.approx(0.1)] * 3)
    assert servers_at_will(EVEN, SLOW, 1, SHARDED).estimate == pytest.approx(0.1)


def test_overlap_hides_what_can_be_hidden() -> None:
    none, half, full = (ring(EVEN, Network(1e8, overlap=overlap), 4).estimate for overlap in (0.0, 0.5, 1.0))
    assert full == ring(EVEN, Network(1e8), 4).best
    assert half == pytest.approx((none + full) / 2)


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_workers_of_one_server_come_apart(workers: int) -> None:
    """One pulls while another pushes, so that both directions of the server's link are in use nearly all the time."""
    quick = dataclasses.replace(EVEN, gradient=0.0)
    assert 1.0 <= servers_at_will(quick, SLOW, workers, CENTRAL).estimate < 1.25


def test_rows_gathered_by_two_wait_for_each_other() -> None:
    table = dataclasses.replace(EVEN, dense=(1,), tables=(10_000_000,), row_bytes=1000.0)
    found = ring(table, SLOW, 2)
    # Each receives the rows of the other's half of the batch: 40 kB.
    assert found.best == pytest.approx(max(0.05, 0.05 / 3 + 0.04), abs=1e-5)
    assert found.estimate > 0.05 + 1.5 * 0.04


def test_requests_that_queue_make_a_step_longer_where_it_has_many() -> None:
    queues = dataclasses.replace(SLOW, queueing=0.05)
    central, sharded = (
        servers_at_will(EVEN, queues, 8, form).estimate - servers_at_will(EVEN, SLOW, 8, form).estimate
        for form in (CENTRAL, SHARDED)
    )
    assert sharded > 3 * max(central, 0.0)
    assert ring(EVEN, queues, 8) == ring(EVEN, SLOW, 8)


def test_cores_that_workers_share() -> None:
    shared = dataclasses.replace(INSTANT, contention=1.3)
    assert servers_at_will(EVEN, shared, 2, CENTRAL).estimate * 2 == pytest.approx(0.13)
    two = dataclasses.replace(INSTANT, contention=4.0)
    assert servers_at_will(EVEN, two, 8, CENTRAL).estimate * 8 == pytest.approx(0.4)


def test_computation_is_fitted() -> None:
    exact = [Timed(rows, 0.01 + 0.002 * rows) for rows in (8, 16, 32)]
    assert compute_seconds(exact, 4) == pytest.approx(0.018)
    assert compute_seconds([Timed(10, 1.0)], 5) == pytest.approx(0.5)
    falling = [Timed(8, 0.02), Timed(16, 0.019), Timed(32, 0.018)]
    assert compute_seconds(falling, 1) >= 0.018 - 1e-9


def test_shards_are_dealt_like_the_parameter_servers() -> None:
    assert sorted(shard_loads([5, 4, 3, 3], [1], 2)) == [8, 8]
    assert shard_loads([5, 4], [], 4) == [5, 4, 0, 0]
    # A server would have a megabyte more than its share: what can be cut is cut.
    assert shard_loads([3 << 20, 1 << 20], [], 2) == [2 << 20, 2 << 20]
    assert sorted(shard_loads([1 << 20], [3 << 20], 2)) == [1 << 20, 3 << 20]


def test_every_server_holds_rows_of_a_table_whose_parts_are_large_enough() -> None:
    table, least = 512 << 20, 64 << 20
    assert shard_loads([1 << 20], [table], 2) == [table, 1 << 20]
    for servers in (2, 8):
        loads = shard_loads([1 << 20, 1 << 20], [table, 3], servers, [(table, least)])
        assert sum(loads) == pytest.approx(table + (2 << 20) + 3)
        assert max(loads) <= table / servers + (2 << 20)
    assert max(shard_loads([], [table], 9, [(table, least)])) == table


def test_from_when_on_more_workers_do_not_pay() -> None:
    def at(workers: int, speedup: float) -> Forecast:
        return Forecast(RING, "sync", workers, workers, Range(1, 1, 1), speedup, speedup / workers)

    assert pays_up_to([at(1, 1.0), at(2, 1.8), at(4, 1.9), at(8, 1.7)]) == 2
    assert pays_up_to([at(1, 1.0), at(2, 1.9), at(4, 3.6)]) == 4
    assert pays_up_to([at(1, 1.0), at(2, 0.6)]) == 1
    assert fastest([at(2, 1.8), at(4, 1.8), at(8, 1.7)]).workers == 2


def test_cost_counts_the_servers_host() -> None:
    network = Network(1e9)
    for (form, mode), workers in itertools.product(FORMS, WORKERS):
        found = forecast(EVEN, network, form, mode, workers, price=3.6)
        assert found.seconds == pytest.approx(1000 * found.step.estimate)
        assert found.cost == pytest.approx((workers + (form == CENTRAL)) * found.seconds / 1000)
    assert forecast(dataclasses.replace(EVEN, steps=None), network, RING, "sync", 2, price=1.0).cost is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [("10Gbit", 1.25e9), ("100 Mbit/s", 12.5e6), ("1.5gbps", 187.5e6), ("56kbit", 7000), ("8bit", 1)],
)
def test_bandwidths(text: str, expected: float) -> None:
    assert bandwidth(text) == pytest.approx(expected)


@pytest.mark.parametrize(("text", "expected"), [("50us", 5e-5), ("0.2 ms", 2e-4), ("1s", 1), (".5ms", 5e-4)])
def test_durations(text: str, expected: float) -> None:
    assert duration(text) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["0", "10", "10MB", "0Gbit", "-1Gbit", "fast", "", "1e9bit", "10Gbit later"])
def test_no_bandwidths(text: str) -> None:
    with pytest.raises(UsageError, match="Received"):
        bandwidth(text)


@pytest.mark.parametrize("text", ["50", "us", "-1us", "1h", ""])
def test_no_durations(text: str) -> None:
    with pytest.raises(UsageError, match="Received"):
        duration(text)


@pytest.mark.parametrize("workers", [4, 8])
def test_on_a_slow_network_the_ring_beats_one_server_and_shards_could_close_the_gap(workers: int) -> None:
    """As the literature finds, for equal batches on every worker."""
    one_each = forecast(EVEN, SLOW, RING, "sync", workers, batch="per-worker").step
    central, shards = (forecast(EVEN, SLOW, form, "async", workers).step for form in (CENTRAL, SHARDED))
    assert central.estimate > 2 * one_each.estimate
    # As far as the links go; hosts that do one thing at a time keep most of the gap open.
    assert shards.best == pytest.approx(one_each.estimate, rel=0.5)
    assert shards.estimate < 1.05 * central.estimate


# ---- several workers on a host --------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [4, 16, 512])
def test_a_ring_goes_once_through_each_host(workers: int) -> None:
    """However many ranks a host has, one stream comes in and one goes out."""
    alone, together = Network(1e6, 1e-3), Network(1e6, 1e-3, slots=4)
    assert ring(EVEN, together, workers) == ring(EVEN, alone, workers)
    assert (alone.hosts(workers), together.hosts(workers)) == (workers, workers // 4)


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_workers_of_a_host_share_its_link_to_sharded_servers(slots: int) -> None:
    """Eight even tensors on two hosts: each pulls a half of what its own workers need, and hands out what the others do."""
    found = servers_in_step(EVEN, Network(1e6, slots=slots), 2 * slots, SHARDED)
    assert found.worst * 2 * slots == pytest.approx(0.1 + 2 * slots * 0.5 * 1.0)


def test_servers_on_one_host_move_nothing() -> None:
    found = servers_at_will(EVEN, Network(1e3, slots=8), 8, SHARDED)
    assert found.estimate * 8 == pytest.approx(0.1)


@pytest.mark.parametrize(("form", "mode"), FORMS)
@pytest.mark.parametrize("slots", [2, 4])
def test_large_clusters_follow_small_ones(form: str, mode: str, slots: int) -> None:
    """More workers than are played through: ranges stay in order, and the way there has no jump."""
    network = Network(1e9, 1e-4, slots=slots)
    many = dataclasses.replace(EVEN, dense=(1000,) * 1000)
    found = [forecast(many, network, form, mode, workers).step for workers in (64, 68, 512)]
    assert all(each.best <= each.estimate <= each.worst for each in found)
    assert found[1].estimate == pytest.approx(found[0].estimate, rel=0.25)


def test_what_horovod_has_published_of_512_gpus() -> None:
    """The range holds it; the usual overlap comes within two points for both models; without any it is less."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
        cluster = importlib.import_module("cluster_512")
    assert sum(cluster.resnet_101()) == pytest.approx(44.55e6, rel=1e-3)
    assert sum(cluster.vgg_16()) == 138_357_544
    for model, published in cluster.PUBLISHED.items():
        none, usual = (cluster.efficiencies(model, overlap) for overlap in (0.0, OVERLAP))
        assert none["worst"] < none["estimate"] < published < none["best"]
        assert usual["estimate"] == pytest.approx(published, abs=0.02)
