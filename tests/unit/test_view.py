"""What the pool's page and `fdt top` show: curves, tables, what changed, and the bottleneck in words."""

import dataclasses
import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdt.pool import bottleneck, view
from fdt.pool.curves import MAX_NAMES, Curve
from fdt.pool.observations import JobCurves, Observations
from fdt.pool.snapshot import HostSnapshot, JobSnapshot, Snapshot, WorkerSnapshot
from fdt.v1 import job_pb2

RUNNING = JobSnapshot("job-1", "sync", "running", 120, (), script="train.py", num_workers=2, rate=12.34567)


def usage(rank: int, compute_s: float, exchange_s: float, wait_s: float, **more: float) -> job_pb2.WorkerUsage:
    return job_pb2.WorkerUsage(
        **{"rank": rank, "steps": 100, "compute_s": compute_s, "exchange_s": exchange_s, "wait_s": wait_s, **more}
    )


def job(*workers: job_pb2.WorkerUsage, before: tuple[job_pb2.WorkerUsage, ...] = (), mode: str = "sync") -> JobSnapshot:
    return dataclasses.replace(RUNNING, workers=workers, before=before, mode=mode)


# ---- curves ---------------------------------------------------------------------------------------------------------


@given(st.integers(1, 3000), st.integers(4, 64))
def test_a_curve_is_bounded_even_and_keeps_its_beginning(num_rows: int, limit: int) -> None:
    curve = Curve(limit)
    for number in range(num_rows):
        curve.add(float(number), {"steps": 10.0 * number})
    assert len(curve.times_s) <= limit and curve.times_s[0] == 0
    assert [10 * time_s for time_s in curve.times_s] == list(curve.columns["steps"])
    assert len({b - a for a, b in itertools.pairwise(curve.times_s)}) <= 1
    # No more than one stride is missing at the end.
    stride = curve.times_s[1] - curve.times_s[0] if len(curve.times_s) > 1 else limit
    assert num_rows - 1 - curve.times_s[-1] <= stride


def test_names_that_come_later_and_names_that_are_too_many() -> None:
    curve = Curve()
    curve.add(1.0, {"loss": 2.0})
    curve.add(2.0, {"loss": 1.0, **{f"m{n}": 0.0 for n in range(20)}})
    assert len(curve.columns) == MAX_NAMES and math.isnan(curve.columns["m0"][0])
    shown = view.columns(curve)
    assert shown["series"]["loss"] == [2.0, 1.0] and shown["series"]["m0"] == [None, 0.0]


def test_rates_are_means_between_rows_also_of_a_thinned_curve() -> None:
    curve = Curve(limit=8)
    for number in range(100):
        curve.add(float(number), {"steps": 5 * number})
    found = view.rates(curve)
    assert len(found["times"]) == len(curve.times_s) - 1 and set(found["series"]["steps/s"]) == {5.0}


def test_parts_of_the_workers_time() -> None:
    curve = Curve()
    for time_s, compute, exchange, wait in ((0, 0, 0, 0), (1, 3, 1, 0), (2, 3, 1, 0), (3, 4, 1, 3)):
        curve.add(time_s, {"compute": compute, "exchange": exchange, "wait": wait})
    # Nothing is known of a time in which nothing was accounted.
    assert view.parts(curve)["series"] == {
        "compute": [0.75, None, 0.25], "exchange": [0.25, None, 0.0], "wait": [0.0, None, 0.75]
    }  # fmt: skip


# ---- observations ---------------------------------------------------------------------------------------------------


def test_a_client_that_shows_too_much_is_not_kept() -> None:
    seen = Observations(1 << 16)
    for number in range(1000):
        seen.shown("job-1", {f"{n}" + 200 * "x": 1.0 for n in range(50)}, number / 100)
    kept = seen.curves("job-1").shown
    assert 20 <= len(kept.times_s) <= 25 and len(kept.columns) == MAX_NAMES
    assert max(map(len, kept.columns)) <= 64


def test_traffic_is_of_the_host_and_not_counted_once_a_worker() -> None:
    seen = Observations(1 << 16)
    for tenth in range(50):
        for worker in ("w-1", "w-2"):
            sample = job_pb2.Sample(time_s=1000 + tenth / 10, sent_bytes=100 * tenth, received_bytes=200 * tenth)
            seen.sampled(worker, "", sample)
    assert seen.traffic[""].sent_s == pytest.approx(1000) and seen.traffic[""].received_s == pytest.approx(2000)


def test_what_is_gone_is_forgotten() -> None:
    seen = Observations(1 << 16)
    seen.sampled("w-1", "node", job_pb2.Sample(time_s=1))
    seen.accounted("job-1", [usage(0, 1, 1, 1)], 1.0)
    seen.counted([("job-1", 3)], 1.0)
    seen.forget({"job-1"}, {"node"})
    assert seen.accounts and seen.traffic and seen.curves("job-1").steps.times_s
    seen.forget((), ())
    assert not seen.accounts and not seen.traffic and not seen.curves("job-1").steps.times_s


def test_an_account_that_is_too_large_is_not_kept() -> None:
    seen = Observations(100)
    seen.accounted("job-1", [usage(0, 1, 1, 1, delays=dict.fromkeys(range(100), 1))], 1.0)
    seen.sampled("w-1", "", job_pb2.Sample(gpus=[job_pb2.Gpu(index=n, memory_bytes=1 << 30) for n in range(50)]))
    assert not seen.accounts and not seen.samples


# ---- tables ---------------------------------------------------------------------------------------------------------


def test_a_pool_as_tables() -> None:
    sample = job_pb2.Sample(
        time_s=5, cores=1.56, memory_bytes=123_456_789, gpus=[job_pb2.Gpu(index=0, utilization=0.5)]
    )
    shown = view.overview(
        Snapshot(
            [RUNNING, JobSnapshot("job-2", "async", "queued", 0, (), reason="job-1 is before it")],
            [
                WorkerSnapshot("w-1", "", "serving", "job-1", 0.4, sample, "sync", 1),
                WorkerSnapshot("w-2", "node (10.0.0.2)", "warm", "", 7.6, None, "sync"),
            ],
            [HostSnapshot("", 2, 1, 4), HostSnapshot("node (10.0.0.2)", 3, 0, 8)],
        ),
        1000.0,
    )
    assert json.loads(json.dumps(shown, allow_nan=False)) == shown
    assert shown["jobs"][0]["rate"] == 12.346 and shown["jobs"][1]["reason"] == "job-1 is before it"
    first, second = shown["workers"]
    assert (first["cores"], first["memory_bytes"], first["silent_s"], first["rank"]) == (1.6, 123_000_000, 0, 1)
    assert second["silent_s"] == 8 and second["rank"] is None
    own, other = shown["hosts"]
    assert own["name"] == view.OWN_HOST and own["cores"] == 1.6 and own["gpus"][0]["utilization"] == 0.5
    assert (own["busy"], own["slots"], other["num_cores"], other["cores"]) == (1, 2, 8, 0)


_ROWS = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 2))
_TABLES = st.fixed_dictionaries(dict.fromkeys(view.TABLES, _ROWS))


@given(_TABLES, _TABLES)
def test_changes_lead_from_one_to_the_other(
    before: dict[str, dict[str, int]], after: dict[str, dict[str, int]]
) -> None:
    first, then = (
        {table: {name: {"name": name, "value": value} for name, value in rows.items()} for table, rows in one.items()}
        for one in (before, after)
    )
    found = view.changes(first, then)
    made = {table: dict(rows) for table, rows in first.items()}
    for table, change in found.items():
        for name in change["gone"]:
            del made[table][name]
        made[table].update({row["name"]: row for row in change["rows"]})
        # Nothing is sent that the other end has.
        assert all(first[table].get(row["name"]) != row for row in change["rows"])
    assert made == then
    assert (not found) == (first == then)


def test_all_of_one_job() -> None:
    curves = JobCurves()
    curves.shown.add(1.0, {"loss": math.inf})
    shown = view.detail(
        dataclasses.replace(
            job(usage(0, 8, 1, 1, delays={0: 1, 2: 3}), usage(1, 9, 0, 1), mode="async"), lost=(("job-0", "failed: x"),)
        ),
        curves,
    )
    assert json.loads(json.dumps(shown, allow_nan=False)) == shown
    assert shown["faults"] == 1 and shown["lost"] == [{"name": "job-0", "end": "failed: x"}]
    assert shown["accounts"][0]["delays"] == {"mean": 1.5, "p95": 2, "max": 2}
    assert shown["accounts"][0]["shares"]["compute_s"] == 0.8 and shown["shown"]["series"]["loss"] == [None]


# ---- the bottleneck -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (dataclasses.replace(RUNNING, state="queued", reason="2 workers are busy"), "It waits: 2 workers are busy."),
        (RUNNING, "Not known yet"),
        (dataclasses.replace(RUNNING, state="finished"), ""),
        (job(usage(0, 9, 1, 0), usage(1, 9, 1, 0)), "Computation: 90 % of the workers' time."),
        (job(usage(0, 3, 1, 6), usage(1, 3, 1, 6)), "The script: workers wait 60 % of the time for its next batch."),
        (
            job(usage(0, 2, 8, 0, exchanged_bytes=10**9), usage(1, 2, 8, 0, exchanged_bytes=10**9)),
            "The exchange of gradients: 80 % of the workers' time, 20.0 MB a step",
        ),
        (job(usage(0, 2, 8, 0), usage(1, 9, 1, 0)), "Worker 1 computes 4.5 times as long for a step as the fastest, and"),
        (job(usage(0, 8, 1, 0), usage(1, 4, 3, 0)), "Computation: 75 % of the workers' time."),
        (job(usage(0, 3, 0, 7, held_s=6), mode="async"), "Slow workers: the others wait for them 60 % of the time"),
        (
            job(usage(0, 3, 7, 0, pull_s=5, push_s=2), mode="async"),
            "The parameter servers: 50 % of the workers' time is pull, 20 % push",
        ),
        # What was long ago does not count.
        (job(usage(0, 100, 9, 0), before=(usage(0, 100, 1, 0),)), "The exchange of gradients: 100 %"),
        # A job begun again counts from nothing.
        (job(usage(0, 1, 9, 0), before=(usage(0, 100, 1, 0),)), "The exchange of gradients: 100 %"),
    ],
)  # fmt: skip
def test_the_bottleneck_in_words(found: JobSnapshot, said: str) -> None:
    assert bottleneck.describe(found).startswith(said) and bool(bottleneck.describe(found)) == bool(said)
