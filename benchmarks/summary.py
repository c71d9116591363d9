"""Turns the raw measurements of `step_rate.py` into the tables of `results/step_rate.md`."""

import statistics

import rows
from rate_tables import Comparison, failures, good, rates, ratios, verdict
from record import Content, heading
from tables import spread, table

COMPARISONS = [
    Comparison("fdt1", ("keras",), {"mlp": 1.2, "cnn": 1.0, "embedding": 1.0, "lstm": 1.0}),
    Comparison("fdt2", ("keras",)),
    Comparison("fdt1", ("before1",), {"mlp": 0.95, "cnn": 0.95, "embedding": 0.95, "lstm": 0.95}),
    Comparison("fdt2", ("before2",), {"mlp": 0.95, "cnn": 0.95, "embedding": 0.95, "lstm": 0.95}),
    Comparison("fdt2", ("peer",), {"mlp": 1.0, "cnn": 1.0, "embedding": 1.0, "lstm": 1.0}),
    Comparison("fdt2", ("peer_tuned",)),
    Comparison("peer", ("keras",)),
]
FIRST_STEP_LIMIT_S = 2.0
UPLOAD_LEAST_MB_PER_S = 300


def markdown(content: Content) -> str:
    """Returns all tables; what has not been measured is left out."""
    settings = content["settings"]
    what = (
        f"Medians of {settings['rounds']} alternated rounds (least–most). Batch 64 over all workers; the first epoch "
        "is warm-up. Plain Keras has all cores, as it does by default; a Horovod rank by hand has one "
        "intra-operation thread. The raw figures, with the machine's load at each, are in the JSON."
    )
    parts = ["# Step rate", heading(content), what, "## Steps per second", rates(content, rows.ROWS, rows.SYNC_MODELS)]
    parts += ["## Ratios, within each round", ratios(content, rows.ROWS, rows.SYNC_MODELS, COMPARISONS)]
    parts += [*_first_steps(content), *_big_array(content), *failures(content)]
    return "\n\n".join(parts) + "\n"


def _first_steps(content: Content) -> list[str]:
    entries = good(content, "first_step")
    if not entries:
        return []
    lines = []
    for model in rows.SYNC_MODELS:
        values = [entry["first_step_s"] for entry in entries if entry["model"] == model]
        met = verdict(statistics.median(values) <= FIRST_STEP_LIMIT_S) if values else "–"
        lines.append([model, spread(values, 2), met])
    header = ["", "seconds from fit to the first step", f"wanted ≤ {FIRST_STEP_LIMIT_S}"]
    return ["## First step of a warm pool, 2 workers", table(header, lines)]


def _big_array(content: Content) -> list[str]:
    """Upload and memory of the large array. MB are 10^6 bytes."""
    plain, pool = good(content, "big_array_plain"), good(content, "big_array_fdt")
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
        [f"wanted ≥ {UPLOAD_LEAST_MB_PER_S} MB/s", verdict(_median_at_least(difference, UPLOAD_LEAST_MB_PER_S))],
        ["first fit, MB sent", spread([entry["first_fit"]["bytes_to_pool"] / 1e6 for entry in pool], 3)],
        ["second fit, MB sent", spread([entry["second_fit_bytes"] / 1e6 for entry in pool], 3)],
        ["plain python, peak MB", spread(plain_peak, 0)],
        [f"pool (server, {num_ranks} ranks), idle MB", spread([entry["idle_pool_bytes"] / 1e6 for entry in pool], 0)],
        [f"pool (server, {num_ranks} ranks), peak MB", spread(peak, 0)],
        ["pool and client, peak MB", spread([entry["peak_pool_and_client_bytes"] / 1e6 for entry in pool], 0)],
        [f"array + {num_ranks} × (plain − array) = {strict:.0f} MB", verdict(statistics.median(peak) <= strict)],
        [f"array + {num_ranks} × plain = {loose:.0f} MB", verdict(statistics.median(peak) <= loose)],
    ]
    note = "Memory is PSS: a page that n processes share counts 1/n in each, so the sum counts it once."
    return [f"## An array of {array:.0f} MB, fitted twice", table(["", ""], lines), note]


def _median_at_least(values: list[float], least: float) -> bool:
    return bool(values) and statistics.median(values) >= least
