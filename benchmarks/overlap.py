"""How much of the exchange of gradients is hidden behind back-propagation? Beside Horovod by hand, on hosts of the laboratory.

    python benchmarks/overlap.py                     # about an hour; writes benchmarks/results/overlap.md
    python benchmarks/overlap.py --hosts 2 --kinds 1Gbit:10:4:20 --rounds 1

All hosts of the laboratory share this machine's cores, so nothing can be computed beside an exchange here. Layers are emulated
instead (`emulated/device.cc`): each waits as long as an accelerator would compute, and leaves the cores to the exchange. A kind
is the bandwidth of a host's link, the number of layers, megabytes of weights of each, and milliseconds forwards; it takes twice
as long backwards.

A step takes T. It would take C to compute, which is three times the milliseconds of all layers, and X to exchange, which is
measured with layers that take no time. Hidden is (C + X - T) / X. As much as can be hidden is what an exchange would hide that
begins with each layer's gradient, and goes on without a pause.
"""

import argparse
import dataclasses
import itertools
import os
import statistics
import sys
from collections.abc import Mapping
from typing import Any

from lab.link import Link
from lab.network import Network
from lab.peers import horovod
from lab.pool import Lab
from processes import ROOT, Finished, checked_out, python, run, within
from record import Content, Record, heading
from rows import FIT, PEER
from tables import table

from fdt.forecast import quantities

PACKAGES = ("fdt", "tensorflow", "keras", "horovod", "numpy")
_OURS, _HOROVOD = "fdt run", "Horovod by hand"
_BEFORE = "fdt run, the commit before"
_EPOCHS = "6"
_PATH = ("benchmarks/emulated", "benchmarks/models")


@dataclasses.dataclass(frozen=True)
class Kind:
    """Layers, and the links between hosts; see this file's first lines."""

    bandwidth: str
    layers: int
    megabytes: float
    milliseconds: float

    @classmethod
    def of(cls, text: str) -> "Kind":
        bandwidth, layers, megabytes, milliseconds = text.split(":")
        return cls(bandwidth, int(layers), float(megabytes), float(milliseconds))

    @property
    def compute_s(self) -> float:
        """Seconds of a step without exchanges."""
        return 3e-3 * self.layers * self.milliseconds

    def hidden_at_most(self, exchange_s: float) -> float:
        """Returns what part of an exchange could be hidden."""
        forwards, end = self.compute_s / 3, 0.0
        for layer in range(1, self.layers + 1):
            end = max(end, forwards + 2 * forwards * layer / self.layers) + exchange_s / self.layers
        return (self.compute_s + exchange_s - end) / exchange_s

    def environment(self, is_computed: bool) -> dict[str, str]:
        """Returns what tells `models/emulated.py` of the layers."""
        values = {
            "EMULATED_LAYERS": self.layers,
            "EMULATED_MB": self.megabytes,
            "EMULATED_MS": self.milliseconds if is_computed else 0,
        }
        return {name: str(value) for name, value in values.items()}


def _step_s(result: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the seconds of a step of the middle epoch; the first is warm-up, and in another one there is a snapshot."""
    return {"step_s": statistics.median(result["epoch_seconds"][1:]) / result["steps"]}


def _options(hosts: int, steps: int) -> list[str]:
    """Returns what the script is told: a row of a batch for each host."""
    return ["emulated", "--epochs", _EPOCHS, "--steps", str(steps), "--batch-size", str(hosts)]


def ours(kind: Kind, hosts: int, folder: str, is_computed: bool, steps: int) -> dict[str, Any]:
    """Trains on a synchronous worker of each host."""
    path = {"PYTHONPATH": os.pathsep.join([folder, *(str(ROOT / part) for part in _PATH)])}
    script = [str(ROOT / FIT), *_options(hosts, steps)]
    lab = Lab(hosts, kind.bandwidth, mode="sync", served=["--admit", "EmulatedLayer"])
    with within({**kind.environment(is_computed), **path}), lab:
        ran = lab.run(["--mode", "sync", *script])
        return _step_s(Finished(ran.output, ran.seconds).result())


def by_hand(kind: Kind, hosts: int, is_computed: bool, steps: int) -> dict[str, Any]:
    """Trains with Horovod by hand, a rank to a host."""
    with Network(hosts, Link(8 * quantities.bandwidth(kind.bandwidth))) as network:
        command, environment = horovod(network, [*python(PEER), *_options(hosts, steps)])
        path = {"PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in _PATH)}
        return _step_s(run(command, {**path, **environment, **kind.environment(is_computed)}).result())


def markdown(content: Content) -> str:
    """Returns the page."""
    lines = []
    made = [each for each in content["measurements"] if "failed" not in each]
    for text, hosts in dict.fromkeys((each["layers"], each["hosts"]) for each in made):
        kind = Kind.of(text)
        of_kind = [each for each in made if (each["layers"], each["hosts"]) == (text, hosts)]
        for row in dict.fromkeys(each["row"] for each in of_kind):
            steps = [e["step_s"] for e in of_kind if e["row"] == row and e["computed"]]
            alone = [e["step_s"] for e in of_kind if e["row"] == row and not e["computed"]]
            if not steps or not alone:
                continue
            exchange_s, step_s = statistics.median(alone), statistics.median(steps)
            named = f"{kind.bandwidth}, {kind.layers} of {kind.megabytes:g} MB, {kind.milliseconds:g} ms"
            lines.append(
                [
                    named,
                    str(hosts),
                    row,
                    f"{1e3 * kind.compute_s:.0f}",
                    f"{1e3 * exchange_s:.0f} ({1e3 * min(alone):.0f}–{1e3 * max(alone):.0f})",
                    f"{1e3 * step_s:.0f} ({1e3 * min(steps):.0f}–{1e3 * max(steps):.0f})",
                    f"{(kind.compute_s + exchange_s - step_s) / exchange_s:.0%}",
                    f"{kind.hidden_at_most(exchange_s):.0%}",
                ]
            )
    header = ["layers", "hosts", "", "C, ms", "X, ms", "T, ms", "hidden", "at most"]
    return (
        f"# The exchange behind back-propagation\n\n{heading(content)}\n\n"
        f"Medians (least–most) of {content['settings']['rounds']} alternated rounds, milliseconds of a step: C to compute, X "
        f"to exchange, T in all.\n\n{table(header, lines)}\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5, help="of an epoch; there are six, the first is warm-up")
    parser.add_argument("--hosts", nargs="*", type=int, default=[2, 4, 8])
    parser.add_argument("--kinds", nargs="*", default=["100Mbit:10:1:40", "1Gbit:10:4:20", "1Gbit:4:30:40"])
    parser.add_argument("--before", metavar="COMMIT", help="an earlier commit, measured beside this one")
    options = parser.parse_args()
    record = Record("overlap", vars(options), PACKAGES, markdown)
    with checked_out(options.before) as before:
        for _, text, hosts, is_computed in itertools.product(
            range(options.rounds), options.kinds, options.hosts, [True, False]
        ):
            kind = Kind.of(text)
            ways = {_OURS: lambda k=kind, h=hosts, c=is_computed: ours(k, h, str(ROOT), c, options.steps)}
            if before is not None:
                ways[_BEFORE] = lambda k=kind, h=hosts, c=is_computed: ours(k, h, str(before), c, options.steps)
            ways[_HOROVOD] = lambda k=kind, h=hosts, c=is_computed: by_hand(k, h, c, options.steps)
            for row, measure in ways.items():
                record.add("step", measure, row=row, layers=text, hosts=hosts, computed=is_computed)
    print("\n" + record.markdown())
    return 1 if record.failed() else 0


if __name__ == "__main__":
    sys.exit(main())
