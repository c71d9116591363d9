"""Tables and plot of what `convergence.py` measured."""

import dataclasses
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot

# The others are compared with what `fdt run` does by default, and with what is done to gradients where there is no rule.
DEFAULT, PLAIN, ALONE = "ddc-asgd robust", "asgd", "one machine"


@dataclasses.dataclass(frozen=True)
class Cell:
    """What the seeds of one cell of a table came to.

    Attributes:
        accuracy: Share of the test set, mean over seeds.
        deviation: Standard deviation of that over seeds, 0 for one seed.
        delay: In versions, mean over steps and seeds.
    """

    accuracy: float
    deviation: float
    delay: float

    def text(self) -> str:
        """Returns the accuracy in per cent."""
        return f"{100 * self.accuracy:.1f} ± {100 * self.deviation:.1f}"


@dataclasses.dataclass(frozen=True)
class Section:
    """One table: a data set at one learning rate, with one kind of delays.

    Attributes:
        rate: Learning rate.
        best_rate: The best for one machine.
        kind: "simulated" or "real".
        alone: One machine at the same rate, for as many epochs.
        cells: By rule and number of workers.
    """

    data: str
    rate: float
    best_rate: float
    kind: str
    alone: Cell
    cells: dict[tuple[str, int], Cell]

    @property
    def rules(self) -> list[str]:
        """In the order in which they were measured."""
        return list(dict.fromkeys(rule for rule, _ in self.cells))

    @property
    def workers(self) -> list[int]:
        """Numbers of workers, rising."""
        return sorted({workers for _, workers in self.cells})

    @property
    def about_rate(self) -> str:
        """The learning rate, in words."""
        part = round(self.best_rate / self.rate)
        return f"learning rate {self.rate:g} ({'' if part == 1 else f'1/{part} of '}the best for one machine)"


def sections(content: dict[str, Any]) -> list[Section]:
    """Returns the tables, in the order in which they were measured."""
    groups: dict[tuple[str, float, str], dict[tuple[str, int], list[dict[str, Any]]]] = defaultdict(dict)
    for run in content["runs"]:
        table = groups[run["data"], run["rate"], run["kind"]]
        table.setdefault((run["rule"], run["workers"]), []).append(run)
    found = []
    for (data, rate, kind), table in groups.items():
        alone = _cell(groups[data, rate, "simulated"][ALONE, 1])
        cells = {key: _cell(runs) for key, runs in table.items() if key[0] != ALONE}
        found.append(Section(data, rate, content["learning_rates"][data], kind, alone, cells))
    return found


def _cell(runs: list[dict[str, Any]]) -> Cell:
    accuracies = [run["accuracy"] for run in runs]
    deviation = statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0
    return Cell(statistics.mean(accuracies), deviation, statistics.mean(run["delay"] for run in runs))


# ---- tables ---------------------------------------------------------------------------------------------------------


def markdown(content: dict[str, Any]) -> str:
    """Returns the tables, one for each data set, learning rate and kind of delays."""
    lines = [
        "# Accuracy after asynchronous training",
        "",
        f"{content['date']}, `{content['command'].strip()}`, "
        + ", ".join(f"{name} {version}" for name, version in content["versions"].items()),
        "",
        f"SGD with momentum {content['momentum']}, batch {content['batch_size']}; within a table the learning rate and the "
        "number of epochs are the same for all, one machine too. Per cent of the test set, mean ± standard deviation over "
        "seeds; in brackets the mean delay. A difference smaller than the larger of the two deviations is called small.",
    ]
    for section in sections(content):
        lines += ["", f"## {section.data}, {section.kind} delays, {section.about_rate}", ""]
        lines += [f"One machine: {section.alone.text()}", "", *_table(section), "", *_remarks(section)]
    return "\n".join(lines) + "\n"


def _table(section: Section) -> list[str]:
    lines = ["| rule | " + " | ".join(f"{n} workers" for n in section.workers) + " |"]
    lines.append("|---" * (len(section.workers) + 1) + "|")
    for rule in section.rules:
        row = [section.cells[rule, n] for n in section.workers]
        lines.append(f"| {rule} | " + " | ".join(f"{cell.text()} ({cell.delay:.1f})" for cell in row) + " |")
    return lines


def _remarks(section: Section) -> list[str]:
    """Says where the default rule was not the best, and which rules were not better than none."""
    lines = []
    for n in section.workers:
        cells = {rule: section.cells[rule, n] for rule in section.rules}
        better = [rule for rule in cells if cells[rule].accuracy > cells[DEFAULT].accuracy]
        useless = [rule for rule in cells if rule != PLAIN and cells[rule].accuracy <= cells[PLAIN].accuracy]
        line = f"- {n} workers: {DEFAULT} was "
        line += f"not the best; better, in points: {_differences(cells, better, DEFAULT)}." if better else "the best."
        if useless:
            line += f" No better than {PLAIN}, behind it in points: {_differences(cells, useless, PLAIN)}."
        lines.append(line)
    return lines


def _differences(cells: dict[str, Cell], rules: list[str], other: str) -> str:
    """Names each rule with its distance to another, in points."""
    return ", ".join(f"{rule} by {_difference(cells[rule], cells[other])}" for rule in rules)


def _difference(one: Cell, other: Cell) -> str:
    difference = abs(one.accuracy - other.accuracy)
    return f"{100 * difference:.1f}" + (" (small)" if difference < max(one.deviation, other.deviation) else "")


# ---- plot -----------------------------------------------------------------------------------------------------------


def plot(content: dict[str, Any], path: Path) -> None:
    """Draws accuracy against workers, simulated delays: a row for each data set, a panel for each learning rate."""
    rows: dict[str, list[Section]] = defaultdict(list)
    for section in sections(content):
        if section.kind == "simulated":
            rows[section.data].append(section)
    num_columns = max(map(len, rows.values()))
    size = (7.5 * num_columns, 5 * len(rows))
    figure, panels = pyplot.subplots(len(rows), num_columns, figsize=size, squeeze=False)
    for row, drawn in zip(panels, rows.values(), strict=True):
        for panel, section in zip(row, drawn, strict=True):
            _draw(panel, section)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _draw(panel: Any, section: Section) -> None:
    panel.axhline(100 * section.alone.accuracy, color="0.6", linestyle=":", label=ALONE)
    for rule in section.rules:
        points = [section.cells[rule, n] for n in section.workers]
        strong = rule == DEFAULT
        panel.errorbar(
            section.workers,
            [100 * point.accuracy for point in points],
            [100 * point.deviation for point in points],
            label=rule,
            marker="o",
            capsize=3,
            linewidth=2.5 if strong else 1.2,
            zorder=3 if strong else 2,
        )
    panel.set_xscale("log", base=2)
    panel.set_xticks(section.workers, [str(n) for n in section.workers])
    panel.set_xlabel("workers (simulated delays)")
    panel.set_ylabel("test accuracy, %")
    panel.set_title(f"{section.data}, {section.about_rate}")
    panel.grid(alpha=0.3)
    panel.legend(fontsize=8)
