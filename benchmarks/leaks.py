"""What is left of many runs on one pool of the real runtimes: before, after runs one by one, after several at once.

    python benchmarks/leaks.py            # some minutes; writes benchmarks/results/leaks.{json,md}
    python benchmarks/leaks.py --quick    # two runs each, prints only

`make faults` does the same with a toy runtime for 200 jobs and 20 clients at once.
"""

import argparse
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import processes
from pool import ServedPool
from record import Record
from tables import table

FIT = str(processes.ROOT / "benchmarks" / "models" / "fit.py")
MODES = ("sync", "async")
COUNTED = ("processes", "descriptors", "shared memory", "temporary files")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10, help="of each mode, one after the other")
    parser.add_argument("--clients", type=int, default=4, help="of each mode, at once")
    parser.add_argument("--steps", type=int, default=20, help="of a run")
    parser.add_argument("--quick", action="store_true", help="two of each, nothing written")
    options = parser.parse_args()
    if options.quick:
        options.runs = options.clients = 2
    return options


def main() -> None:
    options = parse_arguments()
    record = Record("leaks", vars(options), ("tensorflow", "horovod", "grpcio"), markdown, keep=not options.quick)
    with ServedPool(2, "both") as pool:
        # What is made once.
        for mode in MODES:
            fit(pool, mode, options.steps)
        record.add("leaks", lambda: account(pool), when="before")
        for _ in range(options.runs):
            for mode in MODES:
                fit(pool, mode, options.steps)
        record.add("leaks", lambda: account(pool), when=f"after {options.runs} runs of each mode, one by one")
        with ThreadPoolExecutor(len(MODES) * options.clients) as clients:
            for ended in [
                clients.submit(fit, pool, mode, options.steps) for mode in MODES for _ in range(options.clients)
            ]:
                ended.result()
        record.add("leaks", lambda: account(pool), when=f"after {options.clients} more of each mode at once")
    print(markdown(record.content))


def fit(pool: ServedPool, mode: str, steps: int) -> None:
    words = ("run", "--mode", mode, *pool.run_options(), FIT, "mlp", "--epochs", "1", "--steps", str(steps))
    processes.run(processes.fdt(*words), timeout_s=900)


def account(pool: ServedPool) -> dict[str, Any]:
    """Counts what there is once workers of runs that have ended are replaced."""
    pool.wait_warm()
    found = processes.tree(pool.pid)
    temporary = [path for path in Path(tempfile.gettempdir()).glob("fdt-pool-*/**/*") if "logs" not in path.parts]
    return {
        "processes": len(found),
        "descriptors": sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in found),
        "shared memory": len(os.listdir("/dev/shm")),
        "temporary files": len(temporary),
        "memory_bytes": pool.pss_bytes(),
        "control_process_bytes": processes.pss_bytes(pool.pid),
    }


def markdown(content: dict[str, Any]) -> str:
    measured = [each for each in content["measurements"] if "failed" not in each]
    rows = [
        [
            each["when"],
            *(f"{each[name]:,}" for name in COUNTED),
            *(f"{each[name] / 1e6:.0f}" for name in ("memory_bytes", "control_process_bytes")),
        ]
        for each in measured
    ]
    header = ["two workers of each mode", *COUNTED, "all, MB", "control process, MB"]
    lines = [
        "# What is left of runs on one pool",
        "",
        f"`{content['command'].strip()}`, {content['date']}, load of the machine {measured[0]['load_1min']:.1f} to "
        f"{measured[-1]['load_1min']:.1f}."
        if measured
        else "",
        "",
        table(header, rows),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
