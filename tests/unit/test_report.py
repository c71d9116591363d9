"""What a run is said to have done."""

from pathlib import Path

import pytest

from fdt.base.config import RunConfig
from fdt.base.usage import delay_summary, usage_since
from fdt.client.report import FitRecord, Report, closing_line
from fdt.forecast.forecasts import Prediction
from fdt.forecast.links import Hosts
from fdt.forecast.step_time import Timed, Workload
from fdt.v1 import job_pb2
from tests.helpers import reports


def usage(rank: int, delays: dict[int, int], **fields: float) -> job_pb2.WorkerUsage:
    message = job_pb2.WorkerUsage(rank=rank, **fields)
    message.delays.update(delays)
    return message


def fit(**fields: object) -> FitRecord:
    plain = {
        "steps": 100,
        "epochs": 1,
        "seconds": 4.0,
        "first_step_seconds": 0.5,
        "step_seconds": 0.25,
        "global_batch": 8,
        "bytes_to_pool": 0,
        "bytes_from_pool": 0,
        "bytes_exchanged": 5000,
        "logs": {},
        "ranks": [],
    }
    return FitRecord(**{**plain, **fields})


def test_delays_are_summed_up() -> None:
    assert delay_summary({0: 50, 1: 45, 7: 5}) == {"mean": 0.8, "p95": 1, "max": 7}
    assert delay_summary({3: 1}) == {"mean": 3.0, "p95": 3, "max": 3}


def test_an_account_is_of_one_fit_only() -> None:
    before = [usage(0, {0: 5}, steps=5, pull_s=1.0, correction_sum=1.0, num_corrected=5)]
    after = [
        usage(1, {2: 3}, steps=3, pull_s=0.5),
        usage(0, {0: 5, 1: 4}, steps=9, pull_s=3.0, correction_sum=3.0, num_corrected=9),
    ]
    first, second = usage_since(before, after)
    assert (first["rank"], first["steps"], first["pull_s"], first["delays"]) == (0, 4, 2.0, {"1": 4})
    assert (first["corrected"], first["correction"]) == (4, 0.5)
    assert (second["rank"], second["delays"]) == (1, {"2": 3})


def test_a_worker_that_took_no_batch_has_the_same_account() -> None:
    idle, busy = usage_since([], [usage(0, {}), usage(1, {0: 3})])
    assert idle.keys() == busy.keys()
    assert idle["delays"] == {}


def test_a_record_works_out_rates_delays_and_corrections() -> None:
    ranks = [
        {"delays": {"0": 10, "1": 40}, "corrected": 50, "correction": 0.2},
        {"delays": {"1": 49, "9": 1}, "corrected": 25, "correction": 0.5},
    ]
    record = fit(ranks=ranks)
    assert (record.updates_per_second, record.bytes_per_step) == (25.0, 50.0)
    assert record.delay == {"mean": 0.98, "p95": 1, "max": 9}
    assert record.correction == 0.3
    line = closing_line([record])
    assert line is not None
    assert "100 updates, 25.0 a second; delay mean 0.98, 95th percentile 1, largest 9" in line


def test_a_synchronous_run_says_how_fast_it_was_and_why() -> None:
    ranks = [{"rank": rank, "compute_s": 2.0, "exchange_s": 1.0 + rank, "wait_s": 0.1} for rank in range(2)]
    first, second = (
        fit(ranks=ranks, steps=101, seconds=4.0),
        fit(ranks=ranks, steps=301, seconds=6.0, step_seconds=0.01),
    )
    assert (first.delay, first.correction) == (None, None)
    line = closing_line([first, second], plain_s=0.14)
    # Of 20 seconds of two workers they computed for 8 and exchanged for 6.
    assert line == (
        "402 steps in 10.0 s, 1.0 s of them up to the first; then 14.3 a second, 2.00 times plain python's as predicted; "
        "the workers' time: 40 % computing, 30 % exchanging, the rest waiting"
    )
    assert "predicted" not in str(closing_line([first, second]))
    assert closing_line([]) is None
    assert closing_line([fit(steps=0, step_seconds=None)]) is None


def test_a_run_says_if_steps_were_divided_for_a_large_part_of_it() -> None:
    def line(*seconds: float, of_several_sizes: bool = True) -> str:
        divided = [{"seconds": each, "serves_other_sizes": False} for each in seconds]
        divided[-1]["serves_other_sizes"] = of_several_sizes
        ranks = [{"rank": 0, "compute_s": 2.0, "exchange_s": 1.0, "wait_s": 0.1, "divided": divided}]
        return str(closing_line([fit(ranks=ranks, steps=101, seconds=4.0)]))

    assert line(0.5, 0.5).endswith("dividing the step took 25 % of it: 2 times, since batches had several sizes")
    assert "dividing" not in line(0.1, 0.1)
    assert "dividing" not in line(3.0, 1.0, of_several_sizes=False), "the first step's, and a validation's"


@pytest.mark.parametrize(
    ("delays", "said", "not_said"),
    [
        ({"0": 50}, "the workers took turns", "may learn less"),
        ({"0": 50, "1": 3}, "largest 1", ";  "),
        ({"1": 50, "18": 1}, "may learn less: --max-delay 2", "took turns"),
    ],
)
def test_an_asynchronous_run_says_what_its_delays_mean(delays: dict[str, int], said: str, not_said: str) -> None:
    ranks = [{"delays": delays, "corrected": 0, "correction": 0.0}, {"delays": {}, "corrected": 0, "correction": 0.0}]
    line = closing_line([fit(ranks=ranks)])
    assert line is not None and said in line and not_said not in line
    alone = closing_line([fit(ranks=ranks[:1])])
    assert alone is not None and "took turns" not in alone


def test_a_rounded_run_is_compared_with_a_rounded_prediction(tmp_path: Path) -> None:
    load = Workload("train.py", 8, 100, 1, (Timed(8, 0.01),), 0.01, 0.0, (4_000_000,), (), 0.0, 0.01)
    exact = Prediction(load, Hosts(1e6), (2,))
    exact.save(tmp_path / "prediction.json")
    predicted = []
    for options in ({}, {"wire": "fp16"}):
        config = RunConfig(
            script="train.py",
            num_workers=2,
            options=options,
            report=tmp_path / "report.json",
            prediction=tmp_path / "prediction.json",
        )
        report = Report(config)
        report.fits.append(fit())
        report.write(0)
        predicted.append(reports.read(tmp_path / "report.json")["prediction"]["predicted"]["best"])
    # Of 4 MB each of two ranks sends and receives as much, or half of it.
    assert predicted[0] - predicted[1] == pytest.approx(2.0, rel=0.01)
