"""Measures the time of a step over hosts behind slow links, beside what was predicted: ring, one server, sharded servers.

    python benchmarks/scaling.py --bandwidth 100Mbit --hosts 2,4,8 --models mlp,squeezenet,embedding

Hosts are network namespaces of this machine (`benchmarks/lab`; needs root), one worker each; one server has a namespace to
itself, sharded servers live beside the workers. The ring gives every worker a batch of the script's size, as asynchronous
workers have it, so that all forms exchange the same for the same work. What is predicted comes from steps that were measured
here before the laboratory was there (`fdt predict`), and from the bandwidth; all hosts share this machine's cores, which
is taken into account.
"""

import argparse
import dataclasses
import functools
import itertools
import sys
import tempfile
from pathlib import Path
from typing import Any

import processes
from lab.link import Link
from lab.pool import Lab
from record import RESULTS, Record
from scaling_tables import markdown, plot

from fdt.forecast.forecasts import Prediction, read
from fdt.forecast.links import Hosts
from fdt.forecast.quantities import bandwidth
from fdt.forecast.step_time import CENTRAL, RING, SHARDED

FIT = processes.ROOT / "benchmarks" / "models" / "fit.py"
MODES = {RING: "sync", CENTRAL: "async", SHARDED: "async"}
# So long an epoch is to last, and so many steps it has at least and at most, for each worker. All begin at one moment, and it
# takes rounds until they pull and push at different times; a snapshot of 22 MB over the link is in it once. Before the epoch
# that is measured there is one in which the arrays come to all hosts, over the link of the pool: 8 copies of 64 MB take 45 s of
# 100 Mbit/s.
_MEASURE_S = 80.0
_EPOCHS = 2
_STEPS = (16, 120)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bandwidth", default="100Mbit")
    parser.add_argument("--hosts", default="2,4,8")
    parser.add_argument("--models", default="mlp,squeezenet,embedding")
    parser.add_argument("--forms", default=",".join(MODES), help="of them, which: %(default)s")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--no-results", action="store_true", help="write nothing into benchmarks/results")
    return parser.parse_args()


def predicted(model: str, options: argparse.Namespace, folder: Path) -> Prediction:
    """Measures a model's step here, and returns what follows for the laboratory's links."""
    saved = folder / f"{model}.json"
    script = [str(FIT), model, "--batch-size", str(options.batch_size)]
    processes.run(processes.fdt("predict", "--bandwidth", options.bandwidth, "--json", str(saved), *script))
    # What TCP leaves of a link for data, and how long others wait for it; and all hosts compute on this machine's cores.
    link = Link(8 * bandwidth(options.bandwidth))
    joined = Hosts(link.payload_bytes_per_s(), cores=1.0, queueing=link.queueing_s)
    return dataclasses.replace(read(saved), transport=joined, batch="per-worker")


def options_of(name: str, hosts: int) -> list[str]:
    """Returns what `fdt run` is told."""
    mode = MODES[name]
    if name == RING:
        return ["--mode", mode, "--batch", "per-worker"]
    servers = ["--ps", "1", "--ps-place", "pool"] if name == CENTRAL else ["--ps", str(hosts)]
    return ["--mode", mode, *servers]


def steps_of(step_s: float, hosts: int) -> int:
    """Returns how many of the script's batches to train on: a multiple of the workers."""
    fewest, most = _STEPS
    return hosts * round(min(most, max(fewest, _MEASURE_S / (step_s * hosts))))


def measure(lab: Lab, prediction: Prediction, saved: Path, model: str, name: str, batch: int) -> dict[str, Any]:
    """Runs one form; returns seconds of a step, measured and predicted."""
    hosts = lab.num_workers
    forecast = prediction.of(name, MODES[name], hosts)
    steps = steps_of(forecast.step.estimate, hosts)
    script = [str(FIT), model, "--epochs", str(_EPOCHS), "--steps", str(steps), "--batch-size", str(batch)]
    run = lab.run([*options_of(name, hosts), "--prediction", str(saved), *script])
    (fit,) = run.report["fits"]
    return {
        "step_s": processes.Finished(run.output, run.seconds).result()["epoch_seconds"][-1] / steps,
        "predicted": dataclasses.asdict(forecast.step),
        "steps": steps,
        "ranks": fit["ranks"],
        "sent_bytes": dict(run.sent_bytes),
        "received_bytes": dict(run.received_bytes),
    }


def main() -> int:
    options = parse_arguments()
    forms = options.forms.split(",")
    record = Record(
        "scaling",
        {**vars(options), "cores_shared": True},
        ("tensorflow", "horovod", "keras"),
        markdown,
        keep=not options.no_results,
    )
    with tempfile.TemporaryDirectory() as name:
        folder, predictions = Path(name), {}
        for model in options.models.split(","):
            predictions[model] = predicted(model, options, folder)
            predictions[model].save(folder / f"{model}.json")
            workload = dataclasses.replace(predictions[model].workload, script=f"benchmarks/models/{model}.py")
            record.content.setdefault("workloads", {})[model] = dataclasses.asdict(workload)
        for hosts in map(int, options.hosts.split(",")):
            with Lab(hosts, options.bandwidth) as lab:
                for number, (model, prediction), form in itertools.product(
                    range(options.rounds), predictions.items(), forms
                ):
                    saved = folder / f"{model}.json"
                    one = functools.partial(measure, lab, prediction, saved, model, form, options.batch_size)
                    record.add("step", one, hosts=hosts, model=model, form=form, mode=MODES[form], round=number)
    print("\n" + record.markdown())
    plot(record.content, RESULTS / "scaling.png" if not options.no_results else None)
    return 1 if record.failed() else 0


if __name__ == "__main__":
    sys.exit(main())
