"""Is every batch trained on once, however long it goes? Four asynchronous workers over two hosts, on a machine that is busy.

    python benchmarks/endurance.py                     # 20 runs of 100,000 updates; writes results/endurance.{json,md}
    python benchmarks/endurance.py --runs 2 --resume   # so many now, beside those that are written already

Each run has a pool of its own, and counts every row of every epoch (`models/counted.py`). One that stops is ended.
"""

import argparse
import contextlib
import itertools
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import processes
from record import Record
from tables import table

COUNTED = str(processes.ROOT / "benchmarks" / "models" / "counted.py")
LIMIT_S = 3600.0
# Four on the host that joins, none of the pool's one.
_AWAY = ("--own", "1", "--slots", "4", "--workers", "4", "--ps-place", "pool")
_BOTH = "two workers and a server a host"
# Where workers and servers are, in turn.
PLACES = {
    "two workers a host, one server": ("--slots", "2"),
    _BOTH: ("--slots", "2", "--ps", "2"),
    "all workers away from the server": _AWAY,
}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, help="in all; with --resume so many more at most")
    parser.add_argument("--epochs", type=int, default=50, help="of a run")
    parser.add_argument("--steps", type=int, default=2000, help="of an epoch")
    parser.add_argument("--load", type=int, default=2, help="processes beside it that compute without end")
    parser.add_argument("--resume", action="store_true", help="measure only what the results do not have yet")
    parser.add_argument("--table", action="store_true", help="count rows of a table that is on both hosts' servers")
    parser.add_argument("--quick", action="store_true", help="a run of each place, short, nothing written")
    options = parser.parse_args()
    if options.table:
        for place in [place for place in PLACES if place != _BOTH]:
            del PLACES[place]
    if options.quick:
        options.runs, options.epochs, options.steps = len(PLACES), 2, 100
    return options


@contextlib.contextmanager
def loaded(number: int) -> Iterator[None]:
    """Processes that want all of a core each."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def run(place: str, options: argparse.Namespace) -> dict[str, Any]:
    script = [COUNTED, "--epochs", str(options.epochs), "--steps", str(options.steps), *["--table"] * options.table]
    words = ["--hosts", "2", *PLACES[place], "--update", "asgd", "--", *script]
    command = processes.python("benchmarks/over_hosts.py", *words)
    with loaded(options.load):
        finished = processes.run(command, timeout_s=LIMIT_S)
    return {**finished.result(), "seconds": finished.seconds}


def main() -> int:
    options = parse_arguments()
    settings = {key: vars(options)[key] for key in ("epochs", "steps", "load", "table")}
    record = Record("endurance", settings, ("tensorflow",), markdown, keep=not options.quick, resume=options.resume)
    places = itertools.cycle(PLACES)
    missing = [(n, place) for n, place in zip(range(20), places, strict=False) if not record.has("run", number=n)]
    for number, place in missing[: options.runs]:
        record.add("run", lambda place=place: run(place, options), number=number, place=place)
    print(record.markdown())
    return 1 if record.failed() else 0


def markdown(content: dict[str, Any]) -> str:
    rows = [
        [
            str(each["number"]),
            each["place"],
            *((f"{each['updates']:,}", str(each["wrong_epochs"])) if "failed" not in each else ("", each["failed"])),
            f"{each['seconds']:.0f}" if "failed" not in each else "",
            f"{each['load_1min']:.1f}",
        ]
        for each in content["measurements"]
    ]
    settings = content["settings"]
    lines = [
        "# Every batch once",
        "",
        f"`{content['command'].strip()}`, {content['date']}. Four asynchronous workers over two hosts of one machine, "
        f"{settings['epochs']} epochs of {settings['steps']:,} updates a run, {settings['load']} processes beside them that "
        "compute without end.",
        "",
        table(["run", "place", "updates", "epochs in which a row did not come once", "seconds", "load"], rows),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
