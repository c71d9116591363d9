"""How fast do batches of 1 MB and of one row travel, beside how fast the script's own data come, and what memory do they take?

    python benchmarks/streaming.py            # writes benchmarks/results/streaming.{json,md}
    python benchmarks/streaming.py --quick    # few batches, prints only: does everything run?

Each round runs every row on every source once, every second round backwards, so that what else the machine does falls on all of
them. In each the script iterates over its data as Keras would, and then fits on them. Memory is that of the script, the pool
and the workers together, over one long fit.
"""

import argparse
import itertools
import statistics
import sys
import time
from functools import partial
from typing import Any

from processes import fdt, python, readable, run, tree_pss_bytes
from record import Content, Record, heading
from tables import spread, table

SCRIPT = "benchmarks/models/stream.py"
PACKAGES = ("fdt", "tensorflow", "keras", "numpy", "grpcio")
# The last one is what streams are compared with: the same rows as arrays, which the pool is sent beforehand.
SOURCES = ("generator", "mapped", "dataset", "arrays")
ROWS: dict[str, list[str]] = {
    "keras": python(SCRIPT),
    "sync 1": fdt("run", "--mode", "sync", "--workers", "1", SCRIPT),
    "sync 2": fdt("run", "--mode", "sync", "--workers", "2", SCRIPT),
    "async 2": fdt("run", "--mode", "async", "--workers", "2", SCRIPT),
}
WANTED = 0.8
# Rows of a batch: of 1 MB, and of 4 kB.
SIZES = (250, 1)


def rates(row: str, source: str, batch_size: int, batches: int) -> dict[str, Any]:
    """Measures both rates once."""
    command = [*ROWS[row], source, "--rows", str(batch_size), "--batches", str(batches), "--rounds", "1"]
    result = run(command, timeout_s=1200).result()
    (fitted,), (iterated,) = result["fitted_per_s"], result["iterated_per_s"]
    return {"command": readable(command), "fitted_per_s": fitted, "iterated_per_s": iterated}


def memory(row: str, source: str, batches: int) -> dict[str, Any]:
    """Looks at the memory over one long fit; the first tenth of the time is start-up."""
    samples: list[tuple[float, int]] = []
    command = [*ROWS[row], source, "--batches", str(batches), "--rounds", "1"]
    run(command, timeout_s=1800, watch=lambda pid: samples.append((time.monotonic(), tree_pss_bytes(pid))))
    tenth = max(1, len(samples) // 10)
    parts = [statistics.median(size for _, size in samples[i * tenth : (i + 1) * tenth]) for i in range(10)]
    return {"command": readable(command), "tenths_mb": [round(part / 1e6) for part in parts]}


def markdown(content: Content) -> str:
    """Returns the tables."""
    done = [entry for entry in content["measurements"] if "failed" not in entry]
    kept = [
        [f"{e['source']}, {e['row']}", *(str(size) for size in e["tenths_mb"])] for e in done if e["kind"] == "memory"
    ]
    settings = content["settings"]
    return (
        f"# Streaming batches of 1 MB and of one row\n\n{heading(content)}\n\n"
        f"Medians (least–most) of {settings['rounds']} alternated rounds of {settings['batches']} batches of 250 rows and "
        f"{settings['single']} of one row of 4 kB, iterating and then fitting in one process.\n\n"
        f"## Batches of 1 MB\n\n{_rates(done, 250)}\n\nWhat a stream costs: its rate of fitting over that of the same rows "
        f"as arrays, which are on the pool before the first step.\n\n{_against_arrays(done)}\n\n"
        f"## Batches of one row\n\n{_rates(done, 1)}\n\n## Memory\n\n"
        f"MB of the script, the pool and the workers together, median of each tenth "
        f"of a run that iterates over {settings['long']} batches and then fits on as many; the first two tenths "
        f"hold the start-up.\n\n{table(['', *(f'{i}/10' for i in range(1, 11))], kept)}\n"
    )


def _rates(done: list[dict[str, Any]], batch_size: int) -> str:
    """Returns the table of rates with batches of so many rows."""
    found = _of_size(done, batch_size)
    heads = ["", "iterates, batches/s", "fits, batches/s", f"fits / iterates (wanted {WANTED})", "fits / Keras fits"]
    lines = []
    for (source, row), entries in found.items():
        fitted, iterated = ([e[name] for e in entries] for name in ("fitted_per_s", "iterated_per_s"))
        keras = {e["round"]: e["fitted_per_s"] for e in found.get((source, "keras"), ())}
        over = [e["fitted_per_s"] / keras[e["round"]] for e in entries if e["round"] in keras]
        ratios = [a / b for a, b in zip(fitted, iterated, strict=True)]
        line = [spread(iterated, 0), spread(fitted, 0), spread(ratios, 2), spread(over, 2) if over else ""]
        lines.append([f"{source}, {row}", *line])
    return table(heads, lines)


def _of_size(done: list[dict[str, Any]], batch_size: int) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Returns what was measured with batches of so many rows, by source and row, in the tables' order."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {
        (source, row): [] for source, row in itertools.product(SOURCES, ROWS)
    }
    for entry in done:
        if entry["kind"] == "rate" and entry["batch_size"] == batch_size:
            found[entry["source"], entry["row"]].append(entry)
    return {key: entries for key, entries in found.items() if entries}


def _against_arrays(done: list[dict[str, Any]]) -> str:
    rate = {
        key: statistics.median(e["fitted_per_s"] for e in entries) for key, entries in _of_size(done, SIZES[0]).items()
    }
    against = [
        [row, *(f"{rate[source, row] / rate['arrays', row]:.2f}" for source in SOURCES[:-1])]
        for row in ROWS
        if all((source, row) in rate for source in SOURCES)
    ]
    return table(["", *SOURCES[:-1]], against)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=1_000, help="of a round; a multiple of 40")
    parser.add_argument("--single", type=int, default=2_000, help="batches of one row, of a round")
    parser.add_argument("--long", type=int, default=10_000, help="batches over which memory is looked at")
    parser.add_argument("--quick", action="store_true", help="few batches, nothing written")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.batches, options.single, options.long = 2, 40, 100, 200
    record = Record("streaming", vars(options), PACKAGES, markdown, keep=not options.quick)
    # An epoch over arrays has too many batches of one row for a round.
    runs = [(SIZES[0], options.batches, source, row) for source in SOURCES for row in ROWS]
    runs += [(SIZES[1], options.single, source, row) for source in SOURCES[:-1] for row in ROWS]
    for number in range(options.rounds):
        for batch_size, batches, source, row in runs if number % 2 == 0 else runs[::-1]:
            measure = partial(rates, row, source, batch_size, batches)
            record.add("rate", measure, source=source, row=row, batch_size=batch_size, round=number)
    for row in ("sync 2", "async 2"):
        record.add("memory", partial(memory, row, "generator", options.long), source="generator", row=row)
    print("\n" + record.markdown())
    return 1 if record.failed() else 0


if __name__ == "__main__":
    sys.exit(main())
