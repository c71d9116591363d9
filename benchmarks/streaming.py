"""How fast do batches of 1 MB and of one row travel, beside how fast the script's own data come, and what memory do they take?

    python benchmarks/streaming.py            # writes benchmarks/results/streaming.{json,md}
    python benchmarks/streaming.py --quick    # few batches, prints only: does everything run?

The rates are taken in turn, in one process: the script iterates over its data as Keras would, and fits on them. Memory is that
of the script, the pool and the workers together, over one long fit.
"""

import argparse
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


def rates(row: str, source: str, batch_size: int, batches: int, rounds: int) -> dict[str, Any]:
    """Measures both rates, `rounds` times in turn."""
    sizes = ["--rows", str(batch_size), "--batches", str(batches), "--rounds", str(rounds)]
    command = [*ROWS[row], source, *sizes]
    result = run(command, timeout_s=1200).result()
    pairs = zip(result["fitted_per_s"], result["iterated_per_s"], strict=True)
    ratios = [fitted / iterated for fitted, iterated in pairs]
    return {"command": readable(command), "ratio": statistics.median(ratios), "ratios": ratios, **result}


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
        f"Medians (least–most) of {settings['rounds']} rounds of {settings['batches']} batches of 250 rows and "
        f"{settings['single']} of one row of 4 kB, iterating and fitting in turn in one process.\n\n"
        f"## Batches of 1 MB\n\n{_rates(done, 250)}\n\nWhat a stream costs: its rate of fitting over that of the same rows "
        f"as arrays, which are on the pool before the first step.\n\n{_against_arrays(done)}\n\n"
        f"## Batches of one row\n\n{_rates(done, 1)}\n\n## Memory\n\n"
        f"MB of the script, the pool and the workers together, median of each tenth "
        f"of a run that iterates over {settings['long']} batches and then fits on as many; the first two tenths "
        f"hold the start-up.\n\n{table(['', *(f'{i}/10' for i in range(1, 11))], kept)}\n"
    )


def _rates(done: list[dict[str, Any]], batch_size: int) -> str:
    """Returns the table of rates with batches of so many rows."""
    found = [e for e in done if e["kind"] == "rate" and e["batch_size"] == batch_size]
    keras = {e["source"]: statistics.median(e["fitted_per_s"]) for e in found if e["row"] == "keras"}
    heads = ["", "iterates, batches/s", "fits, batches/s", f"fits / iterates (wanted {WANTED})", "fits / Keras fits"]
    lines = [
        [
            f"{e['source']}, {e['row']}",
            spread(e["iterated_per_s"], 0),
            spread(e["fitted_per_s"], 0),
            spread(e["ratios"], 2),
            f"{statistics.median(e['fitted_per_s']) / keras[e['source']]:.2f}" if e["source"] in keras else "",
        ]
        for e in found
    ]
    return table(heads, lines)


def _against_arrays(done: list[dict[str, Any]]) -> str:
    rate = {
        (e["source"], e["row"]): statistics.median(e["fitted_per_s"])
        for e in done
        if e["kind"] == "rate" and e["batch_size"] == SIZES[0]
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
    parser.add_argument("--batches", type=int, default=480, help="of a round; a multiple of 40")
    parser.add_argument("--single", type=int, default=2_000, help="batches of one row, of a round")
    parser.add_argument("--long", type=int, default=10_000, help="batches over which memory is looked at")
    parser.add_argument("--quick", action="store_true", help="few batches, nothing written")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.batches, options.single, options.long = 2, 40, 100, 200
    record = Record("streaming", vars(options), PACKAGES, markdown, keep=not options.quick)
    for batch_size, batches in zip(SIZES, (options.batches, options.single), strict=True):
        # An epoch over arrays has too many batches of one row for a round.
        for source in SOURCES if batch_size > 1 else SOURCES[:-1]:
            for row in ROWS:
                measure = partial(rates, row, source, batch_size, batches, options.rounds)
                record.add("rate", measure, source=source, row=row, batch_size=batch_size)
    for row in ("sync 2", "async 2"):
        record.add("memory", partial(memory, row, "generator", options.long), source="generator", row=row)
    print("\n" + record.markdown())
    return 1 if record.failed() else 0


if __name__ == "__main__":
    sys.exit(main())
