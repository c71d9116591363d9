"""What does an image of a folder of JPEGs cost the script's process, and how many are trained a second?

    python benchmarks/files.py                   # writes benchmarks/results/files.{json,md}
    python benchmarks/files.py --tree ../before  # another working tree's fdt, for the rows called "before"
    python benchmarks/files.py --quick           # few images, prints only: does everything run?
    python benchmarks/files.py --hosts 1 2 4     # on hosts of the laboratory, too; needs root

The images are made (224 x 224, some 20 kB) and more than 1 GB when decoded, so that no version sends them once as arrays.
With `--hosts`, a worker each is also on as many hosts of the laboratory (`benchmarks/lab`), each of which has a part of a core
to itself (`--cores`), and so are plain Keras, Horovod by hand, and workers of the tf.data service. The script and the service's
trainer, run beside the hosts, on what is left.
"""

import argparse
import json
import statistics
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from lab.link import Link
from lab.network import POOL, Network
from lab.peers import horovod
from lab.pool import Lab
from processes import ROOT, Finished, fdt, python, readable, run, serving
from record import Content, Record, heading
from rows import models_path
from tables import spread, table

SCRIPT, PEER = "benchmarks/models/jpegs.py", "benchmarks/peers/jpegs_horovod.py"
SERVICE, _PORT = "benchmarks/peers/jpegs_service.py", 5050
_BITS_PER_S = 1e9
PACKAGES = ("fdt", "tensorflow", "keras", "numpy", "grpcio")
RUNS = {"sync 1": ("sync", 1), "sync 2": ("sync", 2), "async 1": ("async", 1), "async 2": ("async", 2)}


def measured(row: str, arguments: list[str], tree: Path | None, rounds: int) -> dict[str, Any]:
    """Runs the script a few times."""
    results: dict[str, list[float]] = {"images_per_s": [], "script_core_ms": [], "sent_bytes": []}
    script, root = str(ROOT / SCRIPT), tree or ROOT
    command = python(script, *arguments)
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as reports:
            report = Path(reports, "report.json")
            if row != "keras":
                mode, workers = RUNS[row]
                options = ("--mode", mode, "--workers", str(workers), "--report", str(report))
                command = fdt("run", *options, script, *arguments)
            result = run(command, {"PYTHONPATH": str(root)}, timeout_s=900, folder=root).result()
            sent = json.loads(report.read_text())["fits"][0]["bytes_to_pool"] if report.exists() else 0
        results["images_per_s"].append(result["images_per_s"])
        results["script_core_ms"].append(result["script_core_ms"])
        results["sent_bytes"].append(sent / result["images"])
    command = [word.replace(arguments[0], "FOLDER") for word in command if "report" not in word]
    return {"command": readable(command), **results, "losses": result["losses"]}


def on_hosts(row: str, arguments: list[str], hosts: int, cores: float, rounds: int) -> dict[str, Any]:
    """Runs the script a few times on hosts of the laboratory that have so many cores each."""
    results: dict[str, list[float]] = {"images_per_s": [], "script_core_ms": [], "sent_bytes": []}
    for _ in range(rounds):
        made = _ON_HOSTS[row](arguments, hosts, cores)
        for name, value in made.items():
            results[name].append(value)
    return results


def _keras_on_host(arguments: list[str], hosts: int, cores: float) -> dict[str, float]:
    with Network(1, Link(_BITS_PER_S), cores) as network:
        result = run(network.inside("host1", python(str(ROOT / SCRIPT), *arguments)), timeout_s=900).result()
    return {"images_per_s": result["images_per_s"], "script_core_ms": result["script_core_ms"]}


def _fdt_on_hosts(arguments: list[str], hosts: int, cores: float) -> dict[str, float]:
    with Lab(hosts, "1Gbit", mode="sync", cores=cores, everywhere=["--data", arguments[0]]) as lab:
        ran = lab.run([str(ROOT / SCRIPT), *arguments], timeout_s=900)
    result = Finished(ran.output, ran.seconds).result()
    sent = ran.report["fits"][0]["bytes_to_pool"] / result["images"]
    return {
        "images_per_s": result["images_per_s"],
        "script_core_ms": result["script_core_ms"],
        "sent_bytes": sent,
    }


def _horovod_on_hosts(arguments: list[str], hosts: int, cores: float) -> dict[str, float]:
    with Network(hosts, Link(_BITS_PER_S), cores) as network:
        command, environment = horovod(network, python(str(ROOT / PEER), *arguments))
        result = run(command, {**models_path(), **environment}, timeout_s=900).result()
    return {"images_per_s": result["images_per_s"]}


def _service_on_hosts(arguments: list[str], hosts: int, cores: float) -> dict[str, float]:
    with (
        Network(hosts, Link(_BITS_PER_S), cores) as network,
        tempfile.TemporaryDirectory() as logs,
        ExitStack() as parts,
    ):
        dispatcher = f"{network.address(POOL)}:{_PORT}"

        def part(name: str, *words: str) -> list[str]:
            return network.inside(name, python(str(ROOT / SERVICE), *words, "--dispatcher", dispatcher))

        def start(name: str, *words: str) -> None:
            log = Path(logs, f"{name}, {words[0]}")
            parts.enter_context(serving(part(name, *words), "ready", log, models_path()))

        start(POOL, "dispatch")
        for host in network.hosts:
            start(host, "work", "--address", f"{network.address(host)}:{_PORT}")
        result = run(part(POOL, "train", *arguments), models_path(), timeout_s=900).result()
    return {"images_per_s": result["images_per_s"], "script_core_ms": result["script_core_ms"]}


_ON_HOSTS = {
    "keras": _keras_on_host,
    "fdt": _fdt_on_hosts,
    "horovod": _horovod_on_hosts,
    "tf.data service": _service_on_hosts,
}


def _over(rates: list[float], plain: float | None) -> str:
    return "-" if plain is None else f"{statistics.median(rates) / plain:.2f}"


def markdown(content: Content) -> str:
    """Returns the table."""
    done = [entry for entry in content["measurements"] if "failed" not in entry]
    # On all cores, and on a host.
    plain = {"host" in e["row"]: statistics.median(e["images_per_s"]) for e in done if e["row"].startswith("keras")}
    heads = ["", "images/s", "of plain Keras", "core-ms an image, script's process", "bytes an image to the pool"]
    lines = [
        [
            f"{e['row']}{', before' if e['tree'] else ''}",
            spread(e["images_per_s"], 0),
            _over(e["images_per_s"], plain.get("host" in e["row"])),
            spread(e["script_core_ms"], 3) if e["script_core_ms"] else "",
            spread(e["sent_bytes"], 0) if e["sent_bytes"] else "",
        ]
        for e in done
    ]
    settings = content["settings"]
    on_their_own = (
        f" Hosts of the laboratory, of 1 Gbit/s, have {settings['cores']:g} of a core each, the script has what is left; plain "
        "Keras is then that on one host."
        if settings["hosts"]
        else ""
    )
    return (
        f"# Folders of JPEGs\n\n{heading(content)}\n\n"
        f"{settings['images']} made JPEGs of 224 x 224, read by `image_dataset_from_directory` in batches of "
        f"{settings['batch']}, 3 epochs, the first of which does not count (it does for bytes). "
        f"Medians (least–most) of {settings['rounds']} rounds. Script, pool and workers share the machine's "
        f"cores.{on_their_own}\n\n{table(heads, lines)}\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--tree", type=Path, help="working tree of a commit before, measured besides")
    parser.add_argument("--rows", default="keras,sync 1,sync 2,async 1,async 2", help="which are measured")
    parser.add_argument("--hosts", nargs="*", type=int, default=[], help="numbers of the laboratory's hosts")
    parser.add_argument("--cores", type=float, default=0.35, help="of each of them")
    parser.add_argument("--quick", action="store_true", help="few images, nothing written")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.images = 1, 400
    # Processes that the run starts have other working directories.
    options.tree = options.tree and options.tree.resolve()
    settings = {name: vars(options)[name] for name in ("rounds", "images", "batch", "hosts", "cores")}
    record = Record("files", settings, PACKAGES, markdown, keep=not options.quick)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made, "images")
        run(python(SCRIPT, str(folder), "--make", str(options.images)), timeout_s=900)
        arguments = [str(folder), "--batch", str(options.batch)]
        for row in filter(None, options.rows.split(",")):
            for tree in (options.tree, None) if options.tree is not None and row != "keras" else (None,):
                measure = partial(measured, row, arguments, tree, options.rounds)
                record.add("rate", measure, row=row, tree=tree is not None)
        for hosts in options.hosts:
            for kind in list(_ON_HOSTS)[hosts != options.hosts[0] :]:
                measure = partial(on_hosts, kind, arguments, hosts, options.cores, options.rounds)
                name = "keras on a host" if kind == "keras" else f"{kind}, {hosts} host{'s'[: hosts > 1]}"
                record.add("rate", measure, row=name, tree=False)
    print("\n" + record.markdown())
    return 1 if record.failed() else 0


if __name__ == "__main__":
    sys.exit(main())
