"""What does a job lose while somebody watches it on the pool's page? One training, whose epochs are watched in turn.

    python benchmarks/watched_job.py            # about five minutes; writes benchmarks/results/watched_job.{json,md}

The watcher reads the stream that a browser reads, of the job's own page, in a thread of the benchmark; its reading is in the
figure. The pool's control process answers it, on the same cores as the workers.
"""

import argparse
import contextlib
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import processes
from pool import ServedPool
from record import Record
from tables import spread, table

FIT = str(processes.ROOT / "benchmarks" / "models" / "fit.py")
MODES = ("sync", "async")
WORKERS = 2
_LOOK_S = 0.02


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2, help="trainings of each mode")
    parser.add_argument("--epochs", type=int, default=13, help="of a training; the first is warm-up")
    parser.add_argument("--steps", type=int, default=200, help="of an epoch")
    parser.add_argument("--quick", action="store_true", help="one training of each, short, nothing written")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.epochs, options.steps = 1, 3, 50
    return options


@contextlib.contextmanager
def reading(client: httpx.Client, address: str, job: str) -> Iterator[None]:
    """Reads a job's stream, from its first bytes on, until the block ends."""
    opened, ended = threading.Event(), threading.Event()

    def read() -> None:
        with client.stream("GET", f"http://{address}/events?job={job}") as stream:
            stream.raise_for_status()
            for _ in stream.iter_raw():
                opened.set()
                if ended.is_set():
                    return

    thread = threading.Thread(target=read)
    thread.start()
    if not opened.wait(30):
        raise processes.RunFailedError("The page's stream said nothing for 30 s.")
    try:
        yield
    finally:
        ended.set()
        thread.join(30)


class Epochs:
    """Watches every second epoch of a training, by the file that it touches at the end of each."""

    def __init__(self, pool: ServedPool, client: httpx.Client, page: str, job: str, ends: Path) -> None:
        self._pool, self._client, self._page, self._job, self._ends = pool, client, page, job, ends
        # Of a whole epoch, by whether it was watched: core-seconds of the control process, and seconds.
        self.control: dict[bool, list[float]] = {False: [], True: []}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Epochs":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(60)

    def _run(self) -> None:
        self._wait_end()
        number = 1
        while not self._over.is_set():
            watched = number % 2 == 1
            with reading(self._client, self._page, self._job) if watched else contextlib.nullcontext():
                began_s, before_s = time.monotonic(), processes.cpu_s(self._pool.pid)
                self._wait_end()
                taken = (processes.cpu_s(self._pool.pid) - before_s) / (time.monotonic() - began_s)
            if not self._over.is_set():
                self.control[watched].append(taken)
            number += 1

    def _wait_end(self) -> None:
        before = self._ends.stat().st_mtime_ns
        while not self._over.wait(_LOOK_S) and self._ends.stat().st_mtime_ns == before:
            pass


def measured(mode: str, options: argparse.Namespace) -> dict[str, Any]:
    """Runs one training on a pool of its own."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        page = f"127.0.0.1:{listener.getsockname()[1]}"
    with (
        tempfile.TemporaryDirectory() as name,
        ServedPool(WORKERS, mode, ("--page", page)) as pool,
        httpx.Client() as client,
    ):
        link = processes.run(processes.fdt("page", "--server", pool.address)).output.split()[-1]
        client.get(link, follow_redirects=True).raise_for_status()
        ends = Path(name) / "ends"
        ends.touch()
        command = processes.fdt("run", "--mode", mode, *pool.run_options(), FIT, "mlp", "--begun", str(ends))
        command += ["--epochs", str(options.epochs), "--steps", str(options.steps)]
        with Epochs(pool, client, page, "job-1", ends) as epochs:
            result = processes.run(command, timeout_s=900).result()
    rates = [result["steps"] / seconds for seconds in result["epoch_seconds"]]
    return {
        "watched": rates[1::2],
        "alone": rates[2::2],
        "control_watched": statistics.median(epochs.control[True]),
        "control_alone": statistics.median(epochs.control[False]),
    }


def markdown(content: dict[str, Any]) -> str:
    """Returns the page."""
    rows = []
    for mode in MODES:
        found = [each for each in content["measurements"] if each["mode"] == mode and "failed" not in each]
        if found:
            watched, alone = ([rate for each in found for rate in each[kind]] for kind in ("watched", "alone"))
            ratios = [one / other for each in found for one, other in zip(each["watched"], each["alone"], strict=False)]
            control = [
                f"{1e3 * statistics.median(each[f'control_{kind}'] for each in found):.1f}"
                for kind in ("watched", "alone")
            ]
            rows.append([mode, spread(watched), spread(alone), spread(ratios, 3), *control, str(len(ratios))])
    header = ["mode", "watched, steps/s", "alone", "watched / alone", "control process watched, core-ms a second"]
    header += ["alone", "pairs of epochs"]
    lines = [
        "# What a job loses by a watcher",
        "",
        f"`{content['command']}`, {content['date']}, {content['machine']['processor']}, {content['machine']['cores']} cores. "
        f"{', '.join(f'{name} {version}' for name, version in content['versions'].items())}.",
        "",
        f"The MLP of 1.9 million parameters on a pool of {WORKERS} workers; an epoch that is watched and the next, which is "
        "not: median (least to most).",
        "",
        table(header, rows),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    options = parse_arguments()
    record = Record(
        "watched_job", vars(options), ("fdt", "tensorflow", "horovod", "starlette"), markdown, keep=not options.quick
    )
    for number in range(options.rounds):
        for mode in MODES:
            record.add("watched", partial(measured, mode, options), mode=mode, round=number)
    print("\n" + record.markdown())
    return 1 if record.failed() else 0


if __name__ == "__main__":
    sys.exit(main())
