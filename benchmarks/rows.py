"""What `step_rate.py` measures: the commands of its rows, and the numbers each gives.

`async_rate.py` has rows of its own (`async_rows.py`), measured the same way.
"""

import dataclasses
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pool import ServedPool
from processes import ROOT, Finished, fdt, pss_bytes, python, readable, run, tree_pss_bytes

MODELS = ("mlp", "cnn", "embedding")
# What synchronous workers are measured on.
SYNC_MODELS = (*MODELS, "lstm")
FIT, BIG_ARRAY, PEER = ("benchmarks/models/fit.py", "benchmarks/models/big_array.py", "benchmarks/peers/horovod_fit.py")


@dataclasses.dataclass(frozen=True)
class Row:
    """One way to train the same model.

    Attributes:
        title: In the table.
        command: What runs before the model's name.
        environment: Added to the process's.
        models: On which it is measured.
        variants: Options of which the fastest is found first, model by model; empty: there is nothing to choose.
        is_before: Whether it runs in the checkout of an earlier commit.
    """

    title: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    models: tuple[str, ...] = MODELS
    variants: tuple[tuple[str, ...], ...] = ()
    is_before: bool = False


def _peer(*options: str) -> tuple[str, ...]:
    """Returns Horovod's own command for two ranks on this machine."""
    horovodrun = str(Path(sys.executable).with_name("horovodrun"))
    return (horovodrun, "-np", "2", "--gloo", *options, *python(PEER))


def models_path() -> dict[str, str]:
    """Returns the environment in which `import mlp` finds a model of this folder; fit.py finds it beside itself."""
    others = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(ROOT / "benchmarks" / "models"), *([others] if others else [])])}


ROWS = {
    "keras": Row("plain keras.fit", tuple(python(FIT))),
    "fdt1": Row("fdt run --workers 1", tuple(fdt("run", "--workers", "1", FIT))),
    "fdt2": Row("fdt run --workers 2", tuple(fdt("run", "--workers", "2", FIT))),
    "before1": Row("the commit before, --workers 1", tuple(fdt("run", "--workers", "1", FIT)), is_before=True),
    "before2": Row("the commit before, --workers 2", tuple(fdt("run", "--workers", "2", FIT)), is_before=True),
    "peer": Row("Horovod by hand, 2 ranks", _peer(), models_path()),
    "peer_tuned": Row("the same, HOROVOD_CYCLE_TIME=0.1", _peer("--cycle-time-ms", "0.1"), models_path()),
}


def sizes(epochs: int, steps: int | None) -> list[str]:
    """Returns the options of fit.py and of every peer for so many epochs of so many steps."""
    return ["--epochs", str(epochs), *(["--steps", str(steps)] if steps else [])]


def step_rate(row: Row, model: str, options: list[str], before: Path | None = None) -> dict[str, Any]:
    """Runs one row on one model; the first epoch is warm-up (tracing, loading, broadcasting).

    Args:
        row: What to run.
        model: One of MODELS.
        options: For the script: `sizes(…)` and what else it takes.
        before: A checkout of an earlier commit, for rows of it.
    """
    folder = before if row.is_before and before else ROOT
    # Of a commit with processes that do not look into their working directory.
    found = {"PYTHONPATH": str(folder)} if folder is not ROOT else {}
    finished = run([*row.command, model, *options], {**row.environment, **found}, folder=folder)
    result = finished.result()
    timed = result["epoch_seconds"][1:]
    return {
        "command": readable([*row.command, model, *options]),
        "steps_per_s": result["steps"] * len(timed) / sum(timed),
        "process_s": finished.seconds,
        **result,
    }


def first_step(pool: ServedPool, model: str) -> dict[str, Any]:
    """Measures, on a warm pool, the seconds from the call of `fit` to the first finished step."""
    pool.wait_warm()
    _, report = _run_on(pool, [FIT, model, "--epochs", "1", "--steps", "20"])
    return {"first_step_s": report["fits"][0]["first_step_seconds"]}


def big_array_plain(megabytes: int) -> dict[str, Any]:
    """Runs the script with a large array as plain Python."""
    peak = Peak()
    finished = run(python(BIG_ARRAY, "--megabytes", str(megabytes)), watch=lambda pid: peak.see(pss_bytes(pid)))
    return {**finished.result(), "peak_bytes": peak.value}


def big_array_fdt(pool: ServedPool, megabytes: int) -> dict[str, Any]:
    """Runs the same script on the pool and measures upload and the pool's memory.

    The upload is timed twice: `whole`, all of the time to the first step of the fit that uploads (hashing, binding and
    a step included), and `difference`, less the time to the first step of the second fit, which needs no upload.
    """
    pool.wait_warm()
    peak, peak_with_client = Peak(), Peak()
    idle = pool.pss_bytes()

    def look(client: int) -> None:
        of_pool = peak.see(pool.pss_bytes())
        peak_with_client.see(of_pool + tree_pss_bytes(client))

    finished, report = _run_on(pool, [BIG_ARRAY, "--megabytes", str(megabytes)], look)
    _, first, second = report["fits"]
    whole, again = first["first_step_seconds"], second["first_step_seconds"]
    sent = first["bytes_to_pool"]
    return {
        **finished.result(),
        "first_fit": first,
        "second_fit": second,
        "upload_whole_mb_per_s": sent / 1e6 / whole,
        "upload_difference_mb_per_s": sent / 1e6 / (whole - again) if whole > again else None,
        "second_fit_bytes": second["bytes_to_pool"],
        "idle_pool_bytes": idle,
        "peak_pool_bytes": peak.value,
        "peak_pool_and_client_bytes": peak_with_client.value,
    }


class Peak:
    """The largest value seen."""

    def __init__(self) -> None:
        self.value = 0

    def see(self, value: int) -> int:
        self.value = max(self.value, value)
        return value


def _run_on(
    pool: ServedPool, script: list[str], watch: Callable[[int], object] | None = None
) -> tuple[Finished, dict[str, Any]]:
    """Runs a script on the pool; returns what it printed and the report."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        finished = run(fdt("run", *pool.run_options(), "--report", str(report), *script), watch=watch)
        return finished, json.loads(report.read_text())
