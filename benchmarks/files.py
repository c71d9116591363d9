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
from record import Content, Measure, Record, heading
from rows import models_path
from tables import spread, table

SCRIPT, PEER = "benchmarks/models/jpegs.py", "benchmarks/peers/jpegs_horovod.py"
SERVICE, _PORT = "benchmarks/peers/jpegs_service.py", 5050
_BITS_PER_S = 1e9
PACKAGES = ("fdt", "tensorflow", "keras", "numpy", "grpcio")
RUNS = {"sync 1": ("sync", 1), "sync 2": ("sync", 2), "async 1": ("async", 1), "async 2": ("async", 2)}


def measured(row: str, arguments: list[str], tree: Path | None) -> dict[str, Any]:
    """Runs the script."""
    script, root = str(ROOT / SCRIPT), tree or ROOT
    command = python(script, *arguments)
    with tempfile.TemporaryDirectory() as reports:
        report = Path(reports, "report.json")
        if row != "keras":
            mode, workers = RUNS[row]
            options = ("--mode", mode, "--workers", str(workers), "--report", str(report))
            command = fdt("run", *options, script, *arguments)
        result = run(command, {"PYTHONPATH": str(root)}, timeout_s=900, folder=root).result()
        sent = json.loads(report.read_text())["fits"][0]["bytes_to_pool"] if report.exists() else 0
    shown = readable([word.replace(arguments[0], "FOLDER") for word in command if "report" not in word])
    rates = {name: result[name] for name in ("images_per_s", "script_core_ms", "losses")}
    return {"command": shown, **rates, "sent_bytes": sent / result["images"]}


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


def markdown(content: Content) -> str:
    """Returns the table."""
    rows: dict[tuple[str, bool], list[dict[str, Any]]] = {}
    for entry in content["measurements"]:
        if "failed" not in entry:
            rows.setdefault((entry["row"], entry["tree"]), []).append(entry)
    # On all cores, and on a host.
    plain = {("host" in e["row"], e["round"]): e for e in rows.get(("keras", False), [])}
    plain |= {("host" in e["row"], e["round"]): e for e in rows.get(("keras on a host", False), [])}
    heads = ["", "images/s", "of plain Keras", "core-ms an image, script's process", "bytes an image to the pool"]
    lines = []
    for (row, is_before), entries in rows.items():
        beside = [(e, plain.get(("host" in row, e["round"]))) for e in entries]
        over = [e["images_per_s"] / keras["images_per_s"] for e, keras in beside if keras is not None]
        costs, sent = ([e[name] for e in entries if name in e] for name in ("script_core_ms", "sent_bytes"))
        line = [f"{row}{', before' if is_before else ''}", spread([e["images_per_s"] for e in entries], 0)]
        of_client = (spread(costs, 3) if costs else "", spread(sent, 0) if sent else "")
        lines.append([*line, spread(over, 2) if over else "-", *of_client])
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
        f"Medians (least–most) of {settings['rounds']} alternated rounds. Script, pool and workers share the machine's "
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
        runs: list[tuple[str, bool, Measure]] = []
        for row in filter(None, options.rows.split(",")):
            for tree in (options.tree, None) if options.tree is not None and row != "keras" else (None,):
                runs.append((row, tree is not None, partial(measured, row, arguments, tree)))
        for hosts in options.hosts:
            for kind in list(_ON_HOSTS)[hosts != options.hosts[0] :]:
                name = "keras on a host" if kind == "keras" else f"{kind}, {hosts} host{'s'[: hosts > 1]}"
                runs.append((name, False, partial(_ON_HOSTS[kind], arguments, hosts, options.cores)))
        for number in range(options.rounds):
            for row, is_before, measure in runs if number % 2 == 0 else runs[::-1]:
                record.add("rate", measure, row=row, tree=is_before, round=number)
    print("\n" + record.markdown())
    return 1 if record.failed() else 0


if __name__ == "__main__":
    sys.exit(main())
