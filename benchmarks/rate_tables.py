"""The tables that every benchmark of step rates has: steps per second, ratios within a round, failures."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from record import Content
from rows import Row
from tables import spread, table


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One line of the table of ratios.

    Attributes:
        row: The row looked at.
        others: What it is compared with; of several, on each model, the one with the highest median.
        wanted: The least ratio asked for, by model.
        title: What the others are called together, where there are several.
    """

    row: str
    others: tuple[str, ...]
    wanted: Mapping[str, float] = dataclasses.field(default_factory=dict)
    title: str = ""


def rates(content: Content, rows: Mapping[str, Row], models: Sequence[str]) -> str:
    """Returns steps per second of every row on every model."""
    lines = [
        [row.title, *(spread(list(rate_by_round(content, name, model).values())) for model in models)]
        for name, row in rows.items()
    ]
    return table(["", *models], lines)


def ratios(content: Content, rows: Mapping[str, Row], models: Sequence[str], comparisons: Sequence[Comparison]) -> str:
    """Returns the ratios, and beside those of which something is wanted, what that is and whether it is met."""
    lines = []
    for comparison in comparisons:
        other = comparison.title or rows[comparison.others[0]].title
        title = f"{rows[comparison.row].title} / {other}"
        lines.append([title, *(_ratio(content, comparison, rows, model) for model in models)])
    return table(["", *models], lines)


def failures(content: Content) -> list[str]:
    """Returns what failed, with its heading; nothing when nothing did."""
    failed = [entry for entry in content["measurements"] if "failed" in entry]
    if not failed:
        return []
    names = ("kind", "model", "row", "variant", "round")
    lines = [[" ".join(str(entry[name]) for name in names if name in entry), entry["failed"]] for entry in failed]
    return ["## Failed", table(["", "why"], lines)]


def good(content: Content, kind: str) -> list[dict[str, Any]]:
    """Returns the measurements of a kind that did not fail."""
    return [entry for entry in content["measurements"] if entry["kind"] == kind and "failed" not in entry]


def verdict(met: bool) -> str:
    return "yes" if met else "no"


def _ratio(content: Content, comparison: Comparison, rows: Mapping[str, Row], model: str) -> str:
    mine = rate_by_round(content, comparison.row, model)
    other, its = _best(content, comparison.others, model)
    values = [mine[number] / its[number] for number in mine if number in its]
    if not values:
        return spread([])
    parts = [spread(values, 2)]
    if len(comparison.others) > 1:
        parts[0] += f" of {rows[other].title}"
    wanted = comparison.wanted.get(model)
    if wanted is not None:
        parts.append(f"wanted ≥ {wanted}: {verdict(statistics.median(values) >= wanted)}")
    return ", ".join(parts)


def _best(content: Content, names: tuple[str, ...], model: str) -> tuple[str, dict[int, float]]:
    """Returns the row with the highest median rate and its rates by round."""
    candidates = {name: rate_by_round(content, name, model) for name in names}
    best = max(candidates, key=lambda name: statistics.median(candidates[name].values()) if candidates[name] else 0.0)
    return best, candidates[best]


def rate_by_round(content: Content, name: str, model: str) -> dict[int, float]:
    """Returns a row's steps per second."""
    return {
        entry["round"]: entry["steps_per_s"]
        for entry in good(content, "step_rate")
        if (entry["row"], entry["model"]) == (name, model)
    }
