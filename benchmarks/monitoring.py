"""What does it cost that workers sample what they use? What a sample takes; and the same training with and without, in turn.

    python benchmarks/monitoring.py            # about ten minutes; writes benchmarks/results/monitoring.{json,md}

A sample is taken with each heartbeat, so what it takes of a processor is what it can take from training, at most: that is
measured over many samples at once. Two trainings, beside each other, differ by more than a part in a hundred for other reasons.

Without: a `sitecustomize` has every process of the run take empty samples instead. Nothing else differs.
"""

import argparse
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import processes
from record import Record
from tables import spread, table

from fdt.base.config import Timing
from fdt.base.sampler import Sampler

FIT = processes.ROOT / "benchmarks" / "models" / "fit.py"
MODES = ("sync", "async")
_SAMPLES = 5000
_NO_SAMPLES = """\
import sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "fdt.base.sampler":
            sys.meta_path.remove(self)
            import fdt.base.sampler
            from fdt.v1 import job_pb2
            fdt.base.sampler.Sampler.__init__ = lambda self: None
            fdt.base.sampler.Sampler.take = lambda self: job_pb2.Sample()
        return None

sys.meta_path.insert(0, Finder())
"""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=8, help="of a run; the first is warm-up")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="one round, one epoch that counts, nothing written")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.epochs = 1, 2
    return options


def sample_cost() -> dict[str, Any]:
    """Takes many samples; returns seconds of a processor for each, as a part of the seconds between two of a worker."""
    sampler = Sampler()
    began_s = time.process_time()
    for _ in range(_SAMPLES):
        sampler.take().SerializeToString()
    seconds = (time.process_time() - began_s) / _SAMPLES
    return {"cpu_s": seconds, "of_a_core": seconds / Timing().heartbeat_s}


def rate(command: list[str], environment: dict[str, str], epochs: int) -> dict[str, Any]:
    """Runs the small MLP; returns steps a second of the epochs after the first."""
    fit = [str(FIT), "mlp", "--epochs", str(epochs)]
    result = processes.run([*command, *fit], environment).result()
    return {"steps_per_s": result["steps"] * (epochs - 1) / sum(result["epoch_seconds"][1:])}


def sampled(mode: str, workers: int, without: Path | None, epochs: int) -> dict[str, Any]:
    """Measures a run with a pool of its own."""
    environment = {} if without is None else {"PYTHONPATH": str(without)}
    return rate(processes.fdt("run", "--mode", mode, "--workers", str(workers)), environment, epochs)


def markdown(content: dict[str, Any]) -> str:
    """Returns the page."""
    rates: dict[tuple[str, bool, int], float] = {
        (entry["mode"], entry["samples"], entry["round"]): entry["steps_per_s"]
        for entry in content["measurements"]
        if entry["kind"] == "rate" and "failed" not in entry
    }
    samples = [entry for entry in content["measurements"] if entry["kind"] == "sample" and "failed" not in entry]
    rows = []
    for mode in MODES:
        rounds = [n for m, samples, n in rates if m == mode and samples and (mode, False, n) in rates]
        if not rounds:
            continue
        on, off = ([rates[mode, samples, n] for n in rounds] for samples in (True, False))
        ratios = [one / other for one, other in zip(on, off, strict=True)]
        rows.append([mode, spread(on), spread(off), spread(ratios, 3), str(len(rounds))])
    lines = [
        "# What sampling costs",
        "",
        f"`{content['command']}`, {content['date']}, {content['machine']['processor']}, {content['machine']['cores']} cores. "
        f"{', '.join(f'{name} {version}' for name, version in content['versions'].items())}.",
        "",
        f"A sample takes {spread([1e3 * sample['cpu_s'] for sample in samples], 3)} ms of a processor (median, least to most, "
        f"of {len(samples)} times {_SAMPLES}); with one a second that is "
        f"{statistics.median(sample['of_a_core'] for sample in samples):.3%} of one core.",
        "",
        "Steps a second of the small MLP (1.9 million parameters): median (least to most) of the rounds; ratios within one.",
        "",
        table(["mode", "with samples", "without", "with / without", "rounds"], rows),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    options = parse_arguments()
    record = Record(
        "monitoring", vars(options), ("fdt", "tensorflow", "horovod", "psutil"), markdown, keep=not options.quick
    )
    with tempfile.TemporaryDirectory() as name:
        without = Path(name)
        (without / "sitecustomize.py").write_text(_NO_SAMPLES)
        for number in range(options.rounds):
            record.add("sample", sample_cost, round=number)
            for mode in MODES:
                # Every second round the other way round.
                for samples in (True, False) if number % 2 == 0 else (False, True):
                    measure = partial(sampled, mode, options.workers, None if samples else without, options.epochs)
                    record.add("rate", measure, mode=mode, samples=samples, round=number)
    print("\n" + record.markdown())
    return 1 if record.failed() else 0


if __name__ == "__main__":
    sys.exit(main())
