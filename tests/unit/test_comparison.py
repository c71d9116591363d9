"""What `fdt compare` makes of runs: arithmetic, the table, the page."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fdt.forecast import page
from fdt.forecast.comparison import (
    COLUMNS,
    IN_PLACE,
    PARTS,
    Comparison,
    Form,
    Measured,
    forms,
    middle,
    of_place,
    of_report,
    text,
)
from fdt.forecast.forecasts import Prediction
from fdt.forecast.links import Machine
from fdt.forecast.step_time import CENTRAL, RING, SHARDED, Timed, Workload

WORKLOAD = Workload(
    script="train.py",
    batch=32,
    steps=100,
    threads=1,
    step=(Timed(32, 0.010), Timed(16, 0.006), Timed(8, 0.004)),
    gradient=0.009,
    update=0.001,
    dense=(1000, 3000),
    tables=(),
    row_bytes=0.0,
    local=0.008,
)
PREDICTION = Prediction(WORKLOAD, Machine(1e9, {"sync": (1.0, 1.0), "async": (1.0, 1.0)}), (1, 2))


def rank(number: int, **given: Any) -> dict[str, Any]:
    return {"rank": number, "steps": 10, "compute_s": 0.05, "exchange_s": 0.02, "wait_s": 0.01, **given}


def sample(time_s: float, **given: Any) -> dict[str, Any]:
    return {
        "time_s": time_s, "cores": 1.0, "memory_bytes": 1e9, "sent_bytes": 0, "received_bytes": 0, "gpus": [], **given
    }  # fmt: skip


def report(*ranks: dict[str, Any], steps: int, seconds: float) -> dict[str, Any]:
    fit = {"steps": steps, "seconds": seconds, "ranks": list(ranks), "bytes_exchanged": 4000 * steps}
    processes = [{"rank": 0, "host": "h", "samples": [sample(float(t)) for t in range(3)]}]
    return {"fits": [{**fit, "steps": 0}, fit], "processes": processes}


def in_place(step: float = 0.008, pause: float = 0.0) -> Measured:
    result = {"made": 15, "counted": 10, "seconds": 10 * step, "paused": 10 * pause, "samples": [sample(0.0)]}
    return of_place(result)


def test_forms() -> None:
    assert forms((1, 2)) == [
        Form(IN_PLACE),
        Form(RING, "sync", 1),
        Form(RING, "sync", 2),
        Form(CENTRAL, "async", 1),
        Form(CENTRAL, "async", 2),
        Form(SHARDED, "async", 2),
    ]
    assert Form(SHARDED, "async", 2).options() == ["--mode", "async", "--workers", "2", "--ps", "2"]


def test_synchronous_workers_make_every_step_together() -> None:
    measured = of_report(Form(RING, "sync", 2), report(rank(0), rank(1), steps=10, seconds=0.1))
    assert measured.steps == 10 and measured.step == pytest.approx(0.01)
    expected = {"compute": 0.005, "exchange": 0.002, "wait": 0.0, "input": 0.001, "other": 0.002}
    assert dict(measured.parts) == pytest.approx(expected)
    assert measured.bytes == 4000


def test_asynchronous_workers_make_each_their_own() -> None:
    ranks = [rank(0, held_s=0.004), rank(1, held_s=0.0)]
    measured = of_report(Form(CENTRAL, "async", 2), report(*ranks, steps=20, seconds=0.1))
    assert measured.step == pytest.approx(0.005)
    assert measured.parts["wait"] == pytest.approx(0.0002)
    assert measured.parts["input"] == pytest.approx(0.0008)
    # A worker's own step takes twice as long as a step of two workers.
    assert sum(measured.parts.values()) == pytest.approx(0.01)


def test_the_middle_of_several_runs() -> None:
    runs = [Measured(Form(IN_PLACE), 10, step) for step in (0.3, 0.1, 0.2)]
    assert (middle(runs).step, middle(runs).each) == (0.2, (0.3, 0.1, 0.2))
    failed = Measured(Form(IN_PLACE), error="no")
    assert middle([runs[0], failed]) == failed


def test_a_prediction_is_held_against_what_was_measured() -> None:
    ring = of_report(Form(RING, "sync", 2), report(rank(0), rank(1), steps=10, seconds=0.1))
    content = Comparison("train.py", "here", [in_place(pause=0.002), ring], PREDICTION).content()
    run = content["runs"][1]
    assert run["speedup"] == pytest.approx(0.8)
    # Half of the batch, and 4,000 bytes there and back; what the script does between epochs comes on top.
    expected = PREDICTION.of(RING, "sync", 2).step.estimate + 0.002
    assert run["predicted"]["estimate"] == pytest.approx(expected)
    assert run["error_of_prediction"] == pytest.approx(expected / 0.01 - 1)


def test_sharding_is_not_predicted_on_one_machine() -> None:
    sharded = of_report(Form(SHARDED, "async", 2), report(rank(0), rank(1), steps=20, seconds=0.1))
    content = Comparison("train.py", "here", [in_place(), sharded], PREDICTION).content()
    assert content["runs"][1]["predicted"] is None
    assert "sharded servers, 2 workers" in text(content)


def test_too_few_steps_say_so() -> None:
    measured = of_place({"made": 3, "counted": 0, "seconds": 0.0, "paused": 0.0, "samples": []})
    assert measured.error is not None and "3 training steps" in measured.error
    assert Comparison("train.py", "here", [measured]).content()["conclusions"] == []


def test_every_figure_of_the_page_is_in_its_data(tmp_path: Path) -> None:
    ring = of_report(Form(RING, "sync", 2), report(rank(0), rank(1), steps=10, seconds=0.1))
    server = of_report(Form(CENTRAL, "async", 2), report(rank(0, held_s=0.001), rank(1), steps=20, seconds=0.1))
    failed = Measured(Form(SHARDED, "async", 2), error="</script> broke")
    content = Comparison("<b>.py", "here", [in_place(), ring, server, failed], PREDICTION).content()
    page.write(content, tmp_path)
    written = (tmp_path / page.NAME).read_text()
    assert "<b>.py" not in written and "&lt;b&gt;.py" in written
    assert "http://" not in written and "https://" not in written, "it is read without a network"
    inner = re.search(r'<script id="data" type="application/json">(.*?)</script>', written, re.DOTALL)
    assert inner is not None
    data = json.loads(inner[1])
    assert data == json.loads(json.dumps(content))
    shown = [float(value) for value in re.findall(r'data-value="([^"]+)"', written)]
    wanted = []
    for run in data["runs"][:3]:
        wanted += [run["steps"], run["step"], run["speedup"]]
        if run["parts"]:
            wanted += [run["predicted"]["estimate"], run["error_of_prediction"]]
            wanted += [*(run["parts"][part] for part in PARTS), run["bytes"]]
    assert shown == wanted
    assert len(re.findall("<th>", written)) == len(COLUMNS)
    for name in ("speedup", "steps", "bytes", "use"):
        assert (tmp_path / f"{name}.png").stat().st_size > 1000


def test_use_adds_up_over_processes_but_not_over_those_of_one_host() -> None:
    samples = [sample(0.0), sample(1.0, cores=0.5, sent_bytes=2e6, received_bytes=1e6)]
    processes = [{"rank": n, "host": "h", "samples": samples} for n in range(2)]
    assert page.used(processes, "cores") == [(0.0, 2.0), (1.0, 1.0)]
    assert page.used(processes, "memory_bytes") == [(0.0, 2e9), (1.0, 2e9)]
    assert page.used(processes, "network") == [(1.0, 3e6)]
    gpus = [sample(0.0, gpus=[{"utilization": 0.5}, {"utilization": 1.0}])]
    assert page.used([{"rank": 0, "host": "h", "samples": gpus}], "gpu") == [(0.0, 1.5)]
