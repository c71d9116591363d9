"""Measures what a table that no host could hold takes of each host's memory: rows of it are on parameter servers of all hosts.

    python benchmarks/table_memory.py                       # 4 GB with its accumulator, four hosts of 1.6 GB; ten minutes

Needs root, for the laboratory (`lab`). Keras 2's Adagrad trains `models/lookups.py`, since its update writes the rows of
a batch alone. Memory is what processes have without files that they have mapped. The same with one server is refused before
the first step.
"""

import argparse
import os
import re
from typing import Any

from lab.pool import Lab
from processes import ROOT, SAMPLE_S, RunFailedError, tree
from record import Content, Record, heading
from rows import FIT, Peak
from state_memory import own_bytes
from tables import table

_UPDATE = ["--update", "asgd"]


class Hosts:
    """The peaks of the largest process of each host, and of the client."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self.peaks: dict[str, Peak] = {}

    def look(self, client: int) -> None:
        """Looks at all of them."""
        self.peaks.setdefault("client", Peak()).see(own_bytes(client))
        for host in self._lab.network.hosts:
            # A worker of a job over hosts has a network of its own.
            sizes = [own_bytes(pid) for started in self._lab.network.pids(host) for pid in tree(started)]
            self.peaks.setdefault(host, Peak()).see(max(sizes, default=0))


def trained(options: argparse.Namespace, servers: int) -> dict[str, Any]:
    """Trains with so many servers on all hosts; returns peaks, or what refused it."""
    os.environ |= {"LOOKUP_ROWS": str(options.rows), "LOOKUP_OPTIMIZER": "Adagrad", "TF_USE_LEGACY_KERAS": "1"}
    with Lab(options.hosts, options.bandwidth, mode="async", everywhere=["--memory", options.memory]) as lab:
        hosts = Hosts(lab)
        arguments = ["--mode", "async", "--ps", str(servers), *_UPDATE, str(ROOT / FIT), "lookups"]
        arguments += ["--epochs", "2", "--steps", str(options.steps)]
        try:
            run = lab.run(arguments, watch=hosts.look)
        except RunFailedError as error:
            found = re.search(r"The training does not fit.*", str(error))
            return {"servers": servers, "refused": found[0] if found else str(error)[-500:]}
    peaks = {name: peak.value for name, peak in hosts.peaks.items()}
    return {
        "servers": servers,
        "peaks": peaks,
        "bytes": run.report["fits"][-1]["bytes_per_step"],
        "seconds": run.seconds,
    }


def markdown(content: Content) -> str:
    """Returns the page."""
    settings, lines, rows = content["settings"], list[str](), list[list[str]]()
    for each in content["measurements"]:
        if "peaks" in each:
            shown = [f"{size / 1e6:.0f}" for size in each["peaks"].values()]
            rows.append([f"{each['servers']}", *shown, f"{each['bytes'] / 1e3:.0f}", f"{each['seconds']:.0f}"])
            header = ["servers", *(f"{name}, MB" for name in each["peaks"]), "kB a step", "seconds in all"]
        else:
            lines.append(f"- {each['servers']} server(s): {each.get('refused', each.get('failed'))}")
    return (
        f"# A table that no host could hold\n\n{heading(content)}\n\n"
        f"{settings['rows']:,} rows of 64 numbers and Adagrad's accumulator, {settings['rows'] * 512 / 1e9:.1f} GB; "
        f"{settings['hosts']} hosts whose processes may use {settings['memory']} each. Peaks of the largest process, by "
        f"samples every {SAMPLE_S} s.\n\n{table(header, rows) if rows else ''}\n\n" + "\n".join(lines) + "\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=7_800_000)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--steps", type=int, default=100, help="of an epoch; there are two")
    parser.add_argument("--memory", default="1.6GB", help="that each host's process may use")
    parser.add_argument("--bandwidth", default="1Gbit", help="of each host")
    parser.add_argument("--no-results", action="store_true", help="write no files")
    options = parser.parse_args()
    settings = {name: value for name, value in vars(options).items() if name != "no_results"}
    record = Record("table_memory", settings, ("tensorflow", "tf_keras"), markdown, keep=not options.no_results)
    for servers in (1, options.hosts):
        record.add("run", lambda servers=servers: trained(options, servers))
    print(markdown(record.content))


if __name__ == "__main__":
    main()
