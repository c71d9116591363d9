"""What is told of predictions, and what is read back."""

import dataclasses
import json
from pathlib import Path

import pytest

from fdt.cli import main
from fdt.errors import UsageError
from fdt.forecast.calibration import Observation, calibrate, fit
from fdt.forecast.forecasts import Prediction, read
from fdt.forecast.links import OVERLAP, Hosts, Machine
from fdt.forecast.step_time import CENTRAL, RING, SHARDED, Timed, Workload

LOAD = Workload(
    script="train.py",
    batch=64,
    steps=500,
    threads=4,
    step=(Timed(64, 0.08, 0.001), Timed(32, 0.044), Timed(16, 0.026)),
    gradient=0.075,
    update=0.004,
    dense=(4_000_000, 1_000_000, 4_000),
    tables=(8_000_000,),
    row_bytes=2_048.0,
    local=0.08,
)
NETWORK = Prediction(LOAD, Hosts(125e6, 1e-4), (1, 2, 4, 8), price=2.0)
BOX = Prediction(LOAD, Machine(400e6, {"sync": (0.6, 1.1), "async": (0.7, 1.0)}), (2, 4))


@pytest.mark.parametrize("prediction", [NETWORK, BOX])
def test_is_read_back(prediction: Prediction, tmp_path: Path) -> None:
    prediction.save(tmp_path / "p.json")
    assert read(tmp_path / "p.json") == prediction
    assert read(tmp_path / "p.json").text() == prediction.text()


def test_table_shows_what_the_file_holds() -> None:
    lines = NETWORK.text().splitlines()
    for found in NETWORK.distributed():
        assert any(f"{found.speedup:.2f}" in line and f"{found.cost:.2f}" in line for line in lines)


def test_there_are_more_servers_than_tensors_where_each_has_a_part_of_one() -> None:
    def numbers(**sizes: tuple[int, ...]) -> set[int]:
        changed = dataclasses.replace(NETWORK, workload=dataclasses.replace(LOAD, **sizes))
        return {found.workers for found in changed.forecasts() if found.form == SHARDED}

    assert numbers() == {1, 2, 4, 8}
    # A table is never cut.
    assert numbers(dense=(), tables=(8_000_000, 4_000_000)) == {1, 2}


def test_rounding_halves_what_travels() -> None:
    rounded = dataclasses.replace(NETWORK, transport=Hosts(62.5e6, 1e-4, rounded=True))
    assert rounded.forecasts() == NETWORK.forecasts()
    assert "rounded to 16 bits" in rounded.text() and "rounded" not in NETWORK.text()


def test_a_cluster_is_told_by_its_hosts_and_their_gpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Servers are one a host, and money is for hosts."""
    NETWORK.save(tmp_path / "p.json")
    told = ["predict", "--load", str(tmp_path / "p.json"), "--json", str(tmp_path / "c.json")]
    assert main.main([*told, "--hosts", "8", "--gpus-per-host", "4", "--bandwidth", "100Gbit"]) == 0
    assert (
        "assumed: 4 workers a host, which are joined by more than its link, links of 100 Gbit/s"
        in capsys.readouterr().out
    )
    found = read(tmp_path / "c.json")
    assert found.workers == (1, 2, 4, 8, 16, 32) and found.transport == Hosts(12.5e9, overlap=OVERLAP, slots=4)
    sharded = [each for each in found.forecasts() if each.form == SHARDED]
    assert {each.workers: each.hosts for each in sharded} == {1: 1, 2: 1, 4: 1, 8: 2, 16: 4, 32: 8}
    one, all_of_it = (found.of(RING, "sync", workers) for workers in (4, 32))
    assert one.cost == pytest.approx(2.0 * 1 * one.seconds / 3600)
    assert all_of_it.cost == pytest.approx(2.0 * 8 * all_of_it.seconds / 3600)
    of_servers = dataclasses.replace(
        found, workload=dataclasses.replace(LOAD, step=(Timed(64, 9.0),), dense=(4,) * 99, tables=())
    )
    assert "--mode async --ps 8 --workers 32)" in of_servers.text()


def test_on_one_machine_servers_are_not_sharded() -> None:
    assert {(f.form, f.mode) for f in BOX.forecasts()} == {(RING, "sync"), (CENTRAL, "async")}


def test_advice_names_the_fastest_and_its_options() -> None:
    fast = dataclasses.replace(NETWORK, transport=Hosts(1e12))
    best = max(fast.distributed(), key=lambda f: (f.speedup, -f.workers))
    assert f"{best.speedup:.2f} times" in fast.text() and f"--workers {best.workers})" in fast.text()
    slow = dataclasses.replace(NETWORK, transport=Hosts(1e4))
    assert "No form is faster" in slow.text() and "larger batches" in slow.text()
    alone = dataclasses.replace(NETWORK, workers=(1,))
    assert "over one worker" in alone.text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(format=99, fdt="9.9"), r"format 99 \(fdt 9.9\)"),
        (lambda c: c.update(kind="report"), "fdt predict --json"),
        (lambda c: c["workload"].pop("dense"), "no whole prediction"),
        (lambda c: c.pop("transport"), "no whole prediction"),
    ],
)
def test_other_files_are_refused(change, message: str, tmp_path: Path) -> None:
    content = NETWORK.content()
    change(content)
    (tmp_path / "p.json").write_text(json.dumps(content))
    with pytest.raises(UsageError, match=message):
        read(tmp_path / "p.json")
    (tmp_path / "text").write_text("nothing")
    with pytest.raises(UsageError, match="cannot read"):
        read(tmp_path / "text")


def test_plot(tmp_path: Path) -> None:
    NETWORK.plot(tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_calibration_finds_what_made_the_runs() -> None:
    truth = dataclasses.replace(NETWORK, transport=Hosts(125e6, 2e-3, overlap=0.4))
    runs = [
        Observation(f"{form}{n}", NETWORK, form, mode, n, truth.of(form, mode, n).step.estimate)
        for form, mode, n in [(RING, "sync", 2), (RING, "sync", 4), (RING, "sync", 8), (SHARDED, "async", 2)]
    ]
    found = fit(runs)
    assert found.overlap == pytest.approx(0.4, abs=0.05)
    assert found.latency == pytest.approx(2e-3, rel=0.1)
    for before, after in found.errors.values():
        assert abs(after) < 0.01 or abs(after) < abs(before)


def test_calibration_reads_reports(tmp_path: Path) -> None:
    compared = {"form": RING, "mode": "sync", "workers": 4, "measured": 0.1, "source": NETWORK.content()}
    (tmp_path / "report.json").write_text(json.dumps({"format": 1, "prediction": compared}))
    found = calibrate([tmp_path / "report.json"])
    assert set(found.errors) == {str(tmp_path / "report.json")}
    (tmp_path / "none.json").write_text(json.dumps({"format": 1, "prediction": None}))
    with pytest.raises(UsageError, match="--prediction"):
        calibrate([tmp_path / "none.json"])
    compared["source"] = BOX.content()
    (tmp_path / "box.json").write_text(json.dumps({"format": 1, "prediction": compared}))
    with pytest.raises(UsageError, match="shared one machine"):
        calibrate([tmp_path / "box.json"])
