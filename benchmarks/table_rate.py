"""How fast does a step look rows of a large table up and train them? Synchronous workers beside plain Keras and other ways.

    python benchmarks/table_rate.py                     # about 40 minutes; writes benchmarks/results/table_rate.md
    python benchmarks/table_rate.py --quick             # one round of few steps, nothing written

A step takes 64 sets of 20 ids of a table of so many rows of 64 numbers (`models/lookups.py`). Its bytes are what all workers
together hand to exchanges, over what they need to: ids and rows that are looked up, rows of gradients and their ids.
Keras 2's optimizers have kernels of their own for rows, and its `fit` alone works with ParameterServerStrategy: it is measured
too. With `--hosts`, all but plain Keras are also measured on as many hosts of the laboratory (`benchmarks/lab`), which needs
root: a worker of each kind, and a parameter server, to a host.
"""

import argparse
import json
import re
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from lab.link import Link
from lab.network import POOL, Network
from lab.peers import horovod, places
from lab.pool import Lab
from processes import ROOT, Finished, checked_out, fdt, python, run, within
from record import Content, Record, heading
from rows import FIT, PEER, models_path
from tables import table

from fdt.forecast import quantities

PACKAGES = ("fdt", "tensorflow", "keras", "horovod", "numpy")
_PS = "benchmarks/peers/ps_fit.py"
_IDS, _ID_BYTES, _ROW_BYTES = 64 * 20, 4, 64 * 4
# Each id goes to the row's owner and the row comes back; the gradient's row goes there with its id.
_NEEDED_BYTES = _IDS * 2 * (_ID_BYTES + _ROW_BYTES)


def _horovod(ranks: int, *options: str) -> tuple[list[str], dict[str, str]]:
    started = [str(Path(sys.executable).with_name("horovodrun")), "-np", str(ranks), "--gloo", *python(PEER)]
    return [*started, "lookups", *options], models_path()


def _servers(number: int) -> tuple[list[str], dict[str, str]]:
    options = ["--workers", str(number), "--servers", str(number), "--steps-per-execution", "10"]
    return [*python(_PS), "lookups", *options], {**models_path(), **_KERAS_2}


# It sends the gradient of the whole table: of two million rows that takes ten seconds a step.
_DENSE, _MOST_DENSE_ROWS = "the same, sparse as dense", 1_000_000
_KERAS_2 = {"TF_USE_LEGACY_KERAS": "1"}
OTHERS = {
    "plain keras.fit": lambda: ([*python(FIT), "lookups"], {}),
    "plain keras.fit, Keras 2": lambda: ([*python(FIT), "lookups"], _KERAS_2),
    "Horovod by hand, 2 ranks": lambda: _horovod(2),
    _DENSE: lambda: _horovod(2, "--sparse-as-dense"),
    "ParameterServerStrategy, 2 workers, 2 servers, MinSizePartitioner": lambda: _servers(2),
}


def ours(folder: Path, workers: int, table: dict[str, str], options: list[str]) -> dict[str, Any]:
    """Trains on synchronous workers."""
    with tempfile.TemporaryDirectory() as kept:
        report = Path(kept, "report.json")
        started = fdt("run", "--workers", str(workers), "--report", str(report), FIT, "lookups", *options)
        finished = run(started, {**table, **({"PYTHONPATH": str(folder)} if folder != ROOT else {})}, folder=folder)
        fits = json.loads(report.read_text())["fits"]
    return {**_rates(finished.result()), "bytes": fits[-1]["bytes_per_step"] if workers > 1 else 0}


def over_hosts(hosts: int, bandwidth: str, mode: str, table: dict[str, str], options: list[str]) -> dict[str, Any]:
    """Trains on workers of a host each; of asynchronous ones each host has a parameter server, too."""
    servers = ["--ps", str(hosts)] if mode == "async" else []
    with within(table), Lab(hosts, bandwidth, mode=mode) as lab:
        ran = lab.run(["--mode", mode, *servers, str(ROOT / FIT), "lookups", *options])
    return {
        **_rates(Finished(ran.output, ran.seconds).result()),
        "bytes": ran.report["fits"][-1]["bytes_per_step"],
    }


def horovod_over_hosts(
    hosts: int, bandwidth: str, dense: bool, table: dict[str, str], options: list[str]
) -> dict[str, Any]:
    """Trains with Horovod by hand, a rank to a host; `peers/ssh` is what horovodrun starts them by."""
    with Network(hosts, Link(8 * quantities.bandwidth(bandwidth))) as network:
        trained = [*python(PEER), "lookups", *options, *["--sparse-as-dense"] * dense]
        command, environment = horovod(network, trained)
        return _rates(run(command, {**models_path(), **environment, **table}).result())


def servers_over_hosts(hosts: int, bandwidth: str, table: dict[str, str], options: list[str]) -> dict[str, Any]:
    """Trains by ParameterServerStrategy, a worker and a server to a host."""
    command, environment = _servers(hosts)
    with Network(hosts, Link(8 * quantities.bandwidth(bandwidth))) as network:
        given = {**environment, **table, **places(network)}
        return _rates(run(network.inside(POOL, [*command, *options]), given).result())


def other(title: str, table: dict[str, str], options: list[str]) -> dict[str, Any]:
    """Trains in another way."""
    command, environment = OTHERS[title]()
    return _rates(run([*command, *options], {**environment, **table}).result())


def _rates(result: dict[str, Any]) -> dict[str, Any]:
    """Returns the rate after the first epoch, which is warm-up."""
    timed = result["epoch_seconds"][1:]
    return {"steps_per_s": result["steps"] * len(timed) / sum(timed)}


def markdown(content: Content) -> str:
    """Returns the page."""
    settings = content["settings"]
    kinds = list(dict.fromkeys((each["rows"], each["optimizer"]) for each in content["measurements"]))
    header = ["steps a second", *(f"{rows:,} rows, {optimizer}" for rows, optimizer in kinds)]
    lines, sent = [], []
    for row in dict.fromkeys(each["row"] for each in content["measurements"]):
        cells, bytes_cells = [row], [row]
        for kind in kinds:
            made = [e for e in content["measurements"] if (e["rows"], e["optimizer"]) == kind and e["row"] == row]
            rates = [each["steps_per_s"] for each in made if "failed" not in each]
            shown = "failed" if made else ""
            cells.append(f"{statistics.median(rates):.1f} ({min(rates):.1f}–{max(rates):.1f})" if rates else shown)
            of_bytes = [each["bytes"] for each in made if each.get("bytes")]
            bytes_cells.append(f"{of_bytes[-1] / 1e3:.0f} kB, {of_bytes[-1] / _NEEDED_BYTES:.2f}" if of_bytes else "")
        lines.append(cells)
        if any(bytes_cells[1:]):
            sent.append(bytes_cells)
    return (
        f"# Steps on a large table\n\n{heading(content)}\n\n"
        f"Medians (least–most) of {settings['rounds']} alternated rounds, one machine; 64 x 20 ids a step, rows of 64 "
        "numbers.\n\n"
        f"{table(header, lines)}\n\nBytes a step, of all workers, and over the {_NEEDED_BYTES / 1e3:.0f} kB of ids and "
        f"rows that are needed:\n\n{table(['', *header[1:]], sent)}\n"
    )


def planned(options: argparse.Namespace, rows: int, before: Path | None) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yields the rows of the table, and what measures each, given the kind of table and the script's options."""
    for workers in options.workers:
        yield f"fdt run --workers {workers}", partial(ours, ROOT, workers)
        if before is not None:
            yield f"fdt run --workers {workers}, the commit before", partial(ours, before, workers)
    yield "fdt run --workers 2, Keras 2", partial(with_keras_2, partial(ours, ROOT, 2))
    for hosts in options.hosts:
        on, where = f", {hosts} hosts", (hosts, options.bandwidth)
        yield f"fdt run{on}", partial(over_hosts, *where, "sync")
        yield f"fdt run, Keras 2{on}", partial(with_keras_2, partial(over_hosts, *where, "sync"))
        yield f"fdt run --mode async{on}", partial(over_hosts, *where, "async")
        yield f"fdt run --mode async, Keras 2{on}", partial(with_keras_2, partial(over_hosts, *where, "async"))
        yield f"Horovod by hand{on}", partial(horovod_over_hosts, *where, False)
        if rows <= _MOST_DENSE_ROWS:
            yield f"the same, sparse as dense{on}", partial(horovod_over_hosts, *where, True)
        yield f"ParameterServerStrategy{on}", partial(servers_over_hosts, *where)
    for title in OTHERS:
        if title != _DENSE or rows <= _MOST_DENSE_ROWS:
            yield title, partial(other, title)


def with_keras_2(measure: Callable[..., Any], table: dict[str, str], options: list[str]) -> Any:
    """Trains the same with Keras 2."""
    return measure({**table, **_KERAS_2}, options)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=50, help="of an epoch; there are three, the first is warm-up")
    parser.add_argument("--rows", nargs="*", type=int, default=[200_000, 2_000_000])
    parser.add_argument("--optimizers", nargs="*", default=["Adam", "Adagrad"])
    parser.add_argument("--workers", nargs="*", type=int, default=[1, 2, 4])
    parser.add_argument("--hosts", nargs="*", type=int, default=[])
    parser.add_argument("--bandwidth", default="1Gbit", help="of each host of the laboratory")
    parser.add_argument("--only", default="", metavar="PATTERN", help="only rows whose names this finds")
    parser.add_argument("--before", metavar="COMMIT", help="an earlier commit, measured beside this one")
    parser.add_argument("--quick", action="store_true", help="one round of few steps, nothing written")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.steps = 1, 10
    record = Record("table_rate", vars(options), PACKAGES, markdown, keep=not options.quick)
    given = ["--epochs", "3", "--steps", str(options.steps)]
    with checked_out(options.before) as before:
        for _ in range(options.rounds):
            for rows in options.rows:
                for optimizer in options.optimizers:
                    kind = {"LOOKUP_ROWS": str(rows), "LOOKUP_OPTIMIZER": optimizer}
                    for row, measure in planned(options, rows, before):
                        if re.search(options.only, row):
                            record.add("run", partial(measure, kind, given), row=row, rows=rows, optimizer=optimizer)
    print("\n" + record.markdown())
    return 1 if record.failed() else 0


if __name__ == "__main__":
    sys.exit(main())
