"""Measures what a training's variables take of each process's memory: plain python, workers that hold all of them, or parts.

    python benchmarks/state_memory.py dense towers                      # 600 MB, 4 workers
    python benchmarks/state_memory.py towers --megabytes 6000 --memory 2.5GB

Memory is what a process has without files that it has mapped. Pages that workers share with the process that forked them are in
it, and in the measured size of a process, too.
"""

import argparse
import re
from pathlib import Path
from typing import Any

from processes import SAMPLE_S, RunFailedError, fdt, python, run, tree
from record import Content, Record
from rows import Peak
from tables import table

_SCRIPT = "benchmarks/models/large_state.py"
_LIMIT_S = 1500.0
# The client starts the pool, which starts the server that forks workers.
_DEPTH = 3


class Watched:
    """The peaks of a run's processes."""

    def __init__(self) -> None:
        self.peaks: dict[int, Peak] = {}
        self.depths: dict[int, int] = {}

    def look(self, client: int) -> None:
        """Looks at a process and its descendants."""
        for pid in tree(client):
            if pid == client:
                self.depths[pid] = 0
            elif (parent := _parent(pid)) in self.depths:
                # One that ends has none.
                self.depths[pid] = self.depths[parent] + 1
            self.peaks.setdefault(pid, Peak()).see(own_bytes(pid))

    def workers(self, number: int) -> list[int]:
        """Returns the peaks of so many workers, in bytes."""
        found = [peak.value for pid, peak in self.peaks.items() if self.depths.get(pid) == _DEPTH]
        return sorted(found, reverse=True)[:number]

    def client(self) -> int:
        """Returns the peak of the process that runs the script."""
        return max(peak.value for pid, peak in self.peaks.items() if self.depths.get(pid) == 0)


def own_bytes(pid: int) -> int:
    """Returns a process's memory without files that it has mapped; 0 when it has ended."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return 1024 * sum(int(size) for size in re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+) kB", text, re.MULTILINE))


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def measure(kind: str, form: str, options: argparse.Namespace) -> dict[str, Any]:
    """Runs a model in a form: "plain", "whole" or "parts"."""
    model = [_SCRIPT, kind, "--megabytes", str(options.megabytes), "--width", str(options.width), "--epochs", "2"]
    model += ["--layers", str(options.layers)] if options.layers else []
    bound = ["--memory", options.memory] if options.memory else []
    held = {"plain": [], "whole": ["--variables", "whole"], "parts": [] if bound else ["--variables", "parts"]}[form]
    started = fdt("run", "--workers", str(options.workers), *bound, *held)
    watched = Watched()
    finished = run([*started, *model] if form != "plain" else python(*model), timeout_s=_LIMIT_S, watch=watched.look)
    said = re.findall(r"held in parts: .*", finished.output)
    return {
        "said": said,
        "client_bytes": watched.client(),
        "worker_bytes": watched.workers(options.workers) if form != "plain" else [],
        **finished.result(),
    }


def base(kind: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measures workers that train a model of as many layers, of hardly any size."""
    layers = max(1, options.megabytes * 1_000_000 // (12 * options.width**2))
    small = {"megabytes": 1, "width": 16, "memory": None, "layers": layers}
    return measure(kind, "parts", argparse.Namespace(**{**vars(options), **small}))


def refused(kind: str, options: argparse.Namespace) -> dict[str, Any]:
    """Runs it as it does not fit: on one worker, and whole on all."""
    model = [_SCRIPT, kind, "--megabytes", str(options.megabytes), "--width", str(options.width), "--epochs", "2"]
    said = []
    for given in (["--workers", "1"], ["--workers", str(options.workers), "--variables", "whole"]):
        try:
            run(fdt("run", *given, "--memory", options.memory, *model), timeout_s=_LIMIT_S)
            said.append("trained")
        except RunFailedError as error:
            found = re.search(r"The training does not fit.*", str(error))
            said.append(found[0] if found else str(error)[-500:])
    return {"said": said}


def markdown(content: Content) -> str:
    """Returns the tables."""
    measured = [each for each in content["measurements"] if "failed" not in each]
    failed = [
        f"- {each['kind']}, {each['form']}: {each['failed']}" for each in content["measurements"] if "failed" in each
    ]
    process = {each["kind"]: max(each["worker_bytes"]) for each in measured if each["form"] == "base"}
    share = content["settings"]["megabytes"] * 1e6 / content["settings"]["workers"]
    rows, lines = [], failed
    for each in measured:
        if each["form"] == "refused":
            lines += [f"- {each['kind']}, refused: {said}" for said in each["said"]]
            continue
        workers = each["worker_bytes"]
        over = f"{(max(workers) - process[each['kind']]) / share:.2f}" if workers and each["form"] == "parts" else ""
        shown = " ".join(f"{value / 1e6:.0f}" for value in workers)
        losses = f"{each['losses'][0]:.6f} {each['losses'][-1]:.6f}"
        rows.append([f"{each['kind']}, {each['form']}", f"{each['client_bytes'] / 1e6:.0f}", shown, over, losses])
        lines += [f"- {each['kind']}, {each['form']}: {said}" for said in each["said"]]
    header = ["model, form", "client, MB", "workers, MB", "less the process, over a fair share", "first and last loss"]
    about = f"Peaks by samples every {SAMPLE_S} s; {content['settings']['megabytes']} MB of variables and moments."
    return "\n\n".join(["# Memory of variables", about, table(header, rows), "\n".join(lines)]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="+", choices=("dense", "towers"))
    parser.add_argument("--megabytes", type=int, default=600)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--memory", help="each worker's bound; then parts are chosen by themselves")
    parser.add_argument("--forms", default="plain,whole,parts")
    parser.add_argument("--no-results", action="store_true", help="write no files")
    options = parser.parse_args()
    settings = {name: value for name, value in vars(options).items() if name != "no_results"}
    options.layers = None
    record = Record("state_memory", settings, ("tensorflow", "keras"), markdown, keep=not options.no_results)
    for kind in options.kinds:
        record.add(kind, lambda kind=kind: base(kind, options), form="base")
        for form in options.forms.split(","):
            record.add(kind, lambda kind=kind, form=form: measure(kind, form, options), form=form)
        if options.memory:
            record.add(kind, lambda kind=kind: refused(kind, options), form="refused")
    print(markdown(record.content))


if __name__ == "__main__":
    main()
