"""Turns the raw measurements of `step_rate.py` into the tables of `results/step_rate.md`."""

import statistics
from typing import Any

import rows
from tables import spread, table

Content = dict[str, Any]
# What is asked for: row, the row it is compared with, the least ratio for each model.
WANTED = [
    ("fdt1", "keras", {"mlp": 1.2, "cnn": 1.0, "embedding": 1.0}),
    ("fdt2", "keras", {}),
    ("fdt2", "peer", {"mlp": 1.0, "cnn": 1.0, "embedding": 1.0}),
    ("fdt2", "peer_tuned", {}),
    ("peer", "keras", {}),
]
FIRST_STEP_LIMIT_S = 2.0
UPLOAD_LEAST_MB_PER_S = 300


def markdown(content: Content) -> str:
    """Returns all tables; what has not been measured is left out."""
    machine, settings = content["machine"], content["settings"]
    versions = ", ".join(f"{name} {version}" for name, version in content["versions"].items())
    how = (
        f"`{content['command'].strip()}` on {content['date']}: {machine['cores']} cores, {machine['processor']}, "
        f"{machine['memory_gb']} GB. {versions}."
    )
    what = (
        f"Medians of {settings['rounds']} alternated rounds (least–most). Batch 64 over all workers; the first epoch "
        "is warm-up. Plain Keras has all cores, as it does by default; a Horovod rank by hand has one "
        "intra-operation thread. The raw figures, with the machine's load at each, are in the JSON."
    )
    parts = ["# Step rate", how, what, "## Steps per second", _rates(content)]
    parts += ["## Ratios, within each round", _ratios(content)]
    parts += [*_first_steps(content), *_big_array(content), *_failures(content)]
    return "\n\n".join(parts) + "\n"


def _rates(content: Content) -> str:
    lines = [
        [row.title, *(spread(list(_rate_by_round(content, name, model).values())) for model in rows.MODELS)]
        for name, row in rows.ROWS.items()
    ]
    return table(["", *rows.MODELS], lines)


def _ratios(content: Content) -> str:
    lines = []
    for name, other, wanted in WANTED:
        cells = []
        for model in rows.MODELS:
            cells.append(_ratio(content, name, other, model, wanted.get(model)))
        lines.append([f"{rows.ROWS[name].title} / {rows.ROWS[other].title}", *cells])
    return table(["", *rows.MODELS], lines)


def _ratio(content: Content, name: str, other: str, model: str, wanted: float | None) -> str:
    mine, its = _rate_by_round(content, name, model), _rate_by_round(content, other, model)
    ratios = [mine[number] / its[number] for number in mine if number in its]
    if not ratios or wanted is None:
        return spread(ratios, 2)
    return f"{spread(ratios, 2)}, wanted ≥ {wanted}: {_verdict(statistics.median(ratios) >= wanted)}"


def _rate_by_round(content: Content, name: str, model: str) -> dict[int, float]:
    return {
        entry["round"]: entry["steps_per_s"]
        for entry in _good(content, "step_rate")
        if (entry["row"], entry["model"]) == (name, model)
    }


def _first_steps(content: Content) -> list[str]:
    entries = _good(content, "first_step")
    if not entries:
        return []
    lines = []
    for model in rows.MODELS:
        values = [entry["first_step_s"] for entry in entries if entry["model"] == model]
        verdict = _verdict(statistics.median(values) <= FIRST_STEP_LIMIT_S) if values else "–"
        lines.append([model, spread(values, 2), verdict])
    header = ["", "seconds from fit to the first step", f"wanted ≤ {FIRST_STEP_LIMIT_S}"]
    return ["## First step of a warm pool, 2 workers", table(header, lines)]


def _big_array(content: Content) -> list[str]:
    """Upload and memory of the large array. MB are 10^6 bytes."""
    plain, pool = _good(content, "big_array_plain"), _good(content, "big_array_fdt")
    if not plain or not pool:
        return []
    whole = [entry["upload_whole_mb_per_s"] for entry in pool]
    difference = [entry["upload_difference_mb_per_s"] for entry in pool if entry["upload_difference_mb_per_s"]]
    array = plain[0]["array_bytes"] / 1e6
    plain_peak = [entry["peak_bytes"] / 1e6 for entry in plain]
    num_ranks = len(pool[0]["first_fit"]["ranks"])
    need = statistics.median(plain_peak)
    peak = [entry["peak_pool_bytes"] / 1e6 for entry in pool]
    strict, loose = array + num_ranks * (need - array), array + num_ranks * need
    lines = [
        ["upload, all of the time to the first step, MB/s", spread(whole, 0)],
        ["upload, less the second fit's time to its first step, MB/s", spread(difference, 0)],
        [f"wanted ≥ {UPLOAD_LEAST_MB_PER_S} MB/s", _verdict(_median_at_least(difference, UPLOAD_LEAST_MB_PER_S))],
        ["first fit, MB sent", spread([entry["first_fit"]["bytes_to_pool"] / 1e6 for entry in pool], 3)],
        ["second fit, MB sent", spread([entry["second_fit_bytes"] / 1e6 for entry in pool], 3)],
        ["plain python, peak MB", spread(plain_peak, 0)],
        [f"pool (server, {num_ranks} ranks), idle MB", spread([entry["idle_pool_bytes"] / 1e6 for entry in pool], 0)],
        [f"pool (server, {num_ranks} ranks), peak MB", spread(peak, 0)],
        ["pool and client, peak MB", spread([entry["peak_pool_and_client_bytes"] / 1e6 for entry in pool], 0)],
        [f"array + {num_ranks} × (plain − array) = {strict:.0f} MB", _verdict(statistics.median(peak) <= strict)],
        [f"array + {num_ranks} × plain = {loose:.0f} MB", _verdict(statistics.median(peak) <= loose)],
    ]
    note = "Memory is PSS: a page that n processes share counts 1/n in each, so the sum counts it once."
    return [f"## An array of {array:.0f} MB, fitted twice", table(["", ""], lines), note]


def _failures(content: Content) -> list[str]:
    failed = [entry for entry in content["measurements"] if "failed" in entry]
    if not failed:
        return []
    lines = [
        [" ".join(str(entry[key]) for key in ("kind", "model", "row", "round") if key in entry), entry["failed"]]
        for entry in failed
    ]
    return ["## Failed", table(["", "why"], lines)]


def _good(content: Content, kind: str) -> list[dict[str, Any]]:
    return [entry for entry in content["measurements"] if entry["kind"] == kind and "failed" not in entry]


def _median_at_least(values: list[float], least: float) -> bool:
    return bool(values) and statistics.median(values) >= least


def _verdict(good: bool) -> str:
    return "yes" if good else "no"
