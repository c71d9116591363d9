"""The rows of `async_rate.py`."""

from typing import Any

import processes
import rows
from processes import fdt, python
from rows import FIT, MODELS, Row

COMPUTE_BOUND = "compute_bound"
ALL_MODELS = (*MODELS, COMPUTE_BOUND)
STOCK = ("loop1", "loop10", "fit1", "fit10")
_LOOP, _FIT = "benchmarks/peers/ps_loop.py", "benchmarks/peers/ps_fit.py"


def _async(num_workers: int, *options: str) -> tuple[str, ...]:
    return tuple(fdt("run", "--mode", "async", "--workers", str(num_workers), *options, FIT))


def _over_hosts(num_hosts: int, *options: str) -> tuple[str, ...]:
    return tuple(python("benchmarks/over_hosts.py", "--hosts", str(num_hosts), *options, "--", FIT))


def _on_one_core(command: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the command confined to one core, as each of two workers is on a machine of two."""
    return ("taskset", "--cpu-list", "0", *command)


def _stock(title: str, script: str, *options: str) -> Row:
    """Returns a row of TensorFlow's own, with the settings of which the best is taken."""
    return Row(
        title,
        (*python(script), *options),
        {**rows.models_path(), "TF_USE_LEGACY_KERAS": "1"},
        variants=(("--threads", "1"), ("--threads", "0")),
    )


ROWS = {
    "keras": Row("plain keras.fit", tuple(python(FIT)), models=ALL_MODELS),
    "fdt1": Row("fdt, 1 worker", _async(1), models=ALL_MODELS),
    "fdt1_core": Row("fdt, 1 worker on one core", _on_one_core(_async(1)), models=(COMPUTE_BOUND,)),
    "fdt2": Row("fdt, 2 workers (ddc-asgd)", _async(2), models=ALL_MODELS),
    "fdt2_asgd": Row("fdt, 2 workers, --update asgd", _async(2, "--update", "asgd")),
    "hosts2": Row("fdt, 2 hosts", _over_hosts(2)),
    "hosts2_asgd": Row("fdt, 2 hosts, --update asgd", _over_hosts(2, "--update", "asgd")),
    # TensorFlow's own has no tunnels.
    "hosts2_open": Row("fdt, 2 hosts, --open-servers", _over_hosts(2, "--open-servers")),
    "loop1": _stock("ClusterCoordinator × 1", _LOOP, "--steps-per-closure", "1"),
    "loop10": _stock("ClusterCoordinator × 10", _LOOP, "--steps-per-closure", "10"),
    "fit1": _stock("tf_keras Model.fit × 1", _FIT, "--steps-per-execution", "1"),
    "fit10": _stock("tf_keras Model.fit × 10", _FIT, "--steps-per-execution", "10"),
}


# What bounds a row, by the names of `async_bound.combined`.
BOUNDS = {"fdt2": "ddc_asgd", "fdt2_asgd": "asgd"}


def bound(model: str) -> dict[str, Any]:
    """Measures what bounds a model's asynchronous steps on this machine."""
    return processes.run(python("benchmarks/async_bound.py", model)).result()


def best_variant(tried: list[dict[str, Any]], name: str, model: str) -> tuple[str, ...]:
    """Returns the fastest options that were tried for a row on a model; the first it has when none was.

    Args:
        tried: Measurements with `row`, `model`, `variant` and, if they did not fail, `steps_per_s`.
        name: One of ROWS.
        model: One of its models.
    """
    mine = [entry for entry in tried if (entry["row"], entry["model"]) == (name, model) and "failed" not in entry]
    if mine:
        return tuple(max(mine, key=lambda entry: float(entry["steps_per_s"]))["variant"].split())
    variants = ROWS[name].variants
    return variants[0] if variants else ()
