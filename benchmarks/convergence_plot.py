"""Table and plot of what `convergence.py` measured."""

import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot

Cells = dict[tuple[str, str, str, int], tuple[float, float, float]]


def cells(content: dict[str, Any]) -> Cells:
    """Returns mean accuracy, its standard deviation and mean delay by (data, kind, rule, workers)."""
    groups: dict[tuple[str, str, str, int], list[dict[str, Any]]] = defaultdict(list)
    for run in content["runs"]:
        groups[run["data"], run["kind"], run["rule"], run["workers"]].append(run)
    found = {}
    for key, runs in groups.items():
        accuracies = [run["accuracy"] for run in runs]
        deviation = statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0
        found[key] = statistics.mean(accuracies), deviation, statistics.mean(run["delay"] for run in runs)
    return found


def markdown(content: dict[str, Any]) -> str:
    """Returns the tables, one for each data set and kind."""
    found = cells(content)
    lines = [
        "# Accuracy after asynchronous training",
        "",
        f"{content['date']}, `{content['command'].strip()}`, "
        + ", ".join(f"{name} {version}" for name, version in content["versions"].items()),
        "",
        f"SGD with momentum {content['momentum']}, batch {content['batch_size']}; the learning rate is the best for one "
        "machine and the same for all. Per cent of the test set, mean ± standard deviation over seeds; in brackets the mean "
        "delay.",
    ]
    for data in dict.fromkeys(key[0] for key in found):
        alone = found.get((data, "simulated", "one machine", 1))
        for kind in dict.fromkeys(key[1] for key in found if key[0] == data):
            workers = sorted({k[3] for k in found if k[:2] == (data, kind) and k[2] != "one machine"})
            rules = dict.fromkeys(k[2] for k in found if k[:2] == (data, kind) and k[2] != "one machine")
            lines += ["", f"## {data}, {kind} delays, learning rate {content['learning_rates'][data]}", ""]
            if alone:
                lines += [f"One machine: {_cell(alone, False)}", ""]
            lines.append("| rule | " + " | ".join(f"{n} workers" for n in workers) + " |")
            lines.append("|---" * (len(workers) + 1) + "|")
            for rule in rules:
                row = [_cell(found[data, kind, rule, n]) for n in workers]
                lines.append(f"| {rule} | " + " | ".join(row) + " |")
            lines += ["", *_remarks(found, data, kind, workers, list(rules))]
    return "\n".join(lines) + "\n"


def _cell(values: tuple[float, float, float], delay: bool = True) -> str:
    mean, deviation, mean_delay = values
    return f"{100 * mean:.1f} ± {100 * deviation:.1f}" + (f" ({mean_delay:.1f})" if delay else "")


def _remarks(found: Cells, data: str, kind: str, workers: list[int], rules: list[str]) -> list[str]:
    """Says where the default rule was not the best."""
    ours = "ddc-asgd robust"
    lines = []
    for n in workers:
        mean = found[data, kind, ours, n][0]
        better = [r for r in rules if r != ours and found[data, kind, r, n][0] > mean]
        if better:
            shown = ", ".join(f"{r} by {100 * (found[data, kind, r, n][0] - mean):.1f}" for r in better)
            lines.append(f"- {n} workers: {ours} was not the best; better, in points: {shown}.")
        else:
            lines.append(f"- {n} workers: {ours} was the best.")
    return lines


def plot(content: dict[str, Any], path: Path) -> None:
    """Draws accuracy against workers, one panel for each data set."""
    found = cells(content)
    names = list(dict.fromkeys(key[0] for key in found))
    figure, panels = pyplot.subplots(1, len(names), figsize=(7.5 * len(names), 5), squeeze=False)
    for panel, data in zip(panels[0], names, strict=True):
        alone = found.get((data, "simulated", "one machine", 1))
        if alone:
            panel.axhline(100 * alone[0], color="0.6", linestyle=":", label="one machine")
        rules = dict.fromkeys(k[2] for k in found if k[:2] == (data, "simulated") and k[2] != "one machine")
        for rule in rules:
            workers = sorted(k[3] for k in found if k[:3] == (data, "simulated", rule))
            points = [found[data, "simulated", rule, n] for n in workers]
            strong = rule == "ddc-asgd robust"
            panel.errorbar(
                workers,
                [100 * p[0] for p in points],
                [100 * p[1] for p in points],
                label=rule,
                marker="o",
                capsize=3,
                linewidth=2.5 if strong else 1.2,
                zorder=3 if strong else 2,
            )
        panel.set_xscale("log", base=2)
        panel.set_xticks(workers, [str(n) for n in workers])
        panel.set_xlabel("workers (simulated delays)")
        panel.set_ylabel("test accuracy, %")
        panel.set_title(f"{data}, learning rate tuned for one machine")
        panel.grid(alpha=0.3)
        panel.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
