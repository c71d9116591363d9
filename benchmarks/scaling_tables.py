"""Tables and the plot of `scaling.py`: what was measured beside what was predicted."""

import itertools
import statistics
from pathlib import Path
from typing import Any

from tables import table

NAMES = {
    "ring": "ring",
    "central": "one server",
    "sharded": "sharded servers",
}
# How far outside the range a measurement may be, and by how much two forms must differ to have an order.
_SLACK = 0.05
_DIFFERENT = 0.1


def markdown(content: dict[str, Any]) -> str:
    """Returns the page."""
    lines = [
        "# A step over hosts behind slow links, measured and predicted",
        "",
        f"`{content['command']}`, {content['date']}, {content['machine']['processor']}, {content['machine']['cores']} cores "
        f"that all hosts share. {', '.join(f'{name} {version}' for name, version in content['versions'].items())}.",
        "",
        "Milliseconds for each of the script's batches (a round of the ring makes as many as there are workers). Error: of the "
        "estimate, relative to what was measured. Of the bound: measured over the best that links and computation allow.",
        "",
        cells(content),
        "",
        *summary(content),
    ]
    return "\n".join(lines) + "\n"


def medians(content: dict[str, Any]) -> dict[tuple[str, int, str], dict[str, Any]]:
    """Returns, by model, hosts and form, the median of the rounds and what was predicted."""
    found: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for entry in content["measurements"]:
        if entry["kind"] == "step" and "failed" not in entry:
            found.setdefault((entry["model"], entry["hosts"], entry["form"]), []).append(entry)
    return {
        key: {
            "step_s": statistics.median(entry["step_s"] for entry in entries),
            "least": min(entry["step_s"] for entry in entries),
            "most": max(entry["step_s"] for entry in entries),
            "predicted": entries[0]["predicted"],
        }
        for key, entries in found.items()
    }


def cells(content: dict[str, Any]) -> str:
    """Returns the table of all of them."""
    rows = []
    for (model, hosts, form), cell in sorted(medians(content).items()):
        told = cell["predicted"]
        rows.append(
            [
                model,
                str(hosts),
                NAMES[form],
                f"{cell['step_s'] * 1e3:.0f} ({cell['least'] * 1e3:.0f}–{cell['most'] * 1e3:.0f})",
                f"{told['estimate'] * 1e3:.0f}",
                f"{told['best'] * 1e3:.0f}–{told['worst'] * 1e3:.0f}",
                f"{cell['step_s'] / told['best']:.2f}",
                f"{error(cell):+.0%}",
                "yes" if inside(cell) else "no",
            ]
        )
    return table(
        ["model", "hosts", "form", "measured", "predicted", "range", "of the bound", "error", "in range"], rows
    )


def error(cell: dict[str, Any]) -> float:
    """Returns the relative error of the estimate."""
    return float(cell["predicted"]["estimate"] / cell["step_s"] - 1)


def inside(cell: dict[str, Any]) -> bool:
    """Returns whether a measurement is in the predicted range, or by a twentieth outside."""
    told = cell["predicted"]
    return bool((1 - _SLACK) * told["best"] <= cell["step_s"] <= (1 + _SLACK) * told["worst"])


def orders(content: dict[str, Any]) -> tuple[int, int]:
    """Returns how many pairs of forms that differ by more than a tenth there are, and of how many the order was predicted."""
    found = medians(content)
    pairs = right = 0
    for model, hosts in dict.fromkeys((model, hosts) for model, hosts, _ in found):
        forms = [cell for key, cell in found.items() if key[:2] == (model, hosts)]
        for one, other in itertools.combinations(forms, 2):
            if abs(one["step_s"] / other["step_s"] - 1) > _DIFFERENT:
                pairs += 1
                measured = one["step_s"] < other["step_s"]
                right += measured == (one["predicted"]["estimate"] < other["predicted"]["estimate"])
    return pairs, right


def summary(content: dict[str, Any]) -> list[str]:
    """Returns what the figures come to."""
    found = list(medians(content).values())
    if not found:
        return ["Nothing was measured."]
    errors = [abs(error(cell)) for cell in found]
    pairs, right = orders(content)
    return [
        f"In range: {sum(map(inside, found))} of {len(found)} cells (wanted 95 %). Error of the estimate: mean "
        f"{statistics.mean(errors):.1%}, largest {max(errors):.1%} (wanted 10 % and 20 %). Order of two forms that differ by "
        f"more than a tenth: right in {right} of {pairs} (wanted 95 %).",
    ]


def plot(content: dict[str, Any], path: Path | None) -> None:
    """Draws the rate of steps over hosts, measured and predicted."""
    found = medians(content)
    if path is None or not found:
        return
    from matplotlib.figure import Figure

    models = list(dict.fromkeys(model for model, _, _ in found))
    figure = Figure(figsize=(5 * len(models), 4.2), layout="constrained")
    for axes, model in zip(figure.subplots(1, len(models), squeeze=False)[0], models, strict=True):
        for form, color in zip(NAMES, ("tab:blue", "tab:red", "tab:purple", "tab:green"), strict=True):
            points = sorted((hosts, cell) for (m, hosts, f), cell in found.items() if (m, f) == (model, form))
            if points:
                counts = [hosts for hosts, _ in points]
                axes.plot(counts, [1 / c["step_s"] for _, c in points], "o-", color=color, label=NAMES[form])
                axes.plot(counts, [1 / c["predicted"]["estimate"] for _, c in points], "x--", color=color)
                low, high = ([1 / c["predicted"][end] for _, c in points] for end in ("worst", "best"))
                axes.fill_between(counts, low, high, color=color, alpha=0.12, linewidth=0)
        axes.set_title(model)
        axes.set_xlabel("hosts")
        axes.set_xticks(sorted({hosts for m, hosts, _ in found if m == model}))
        axes.set_ylabel("batches a second")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    figure.axes[0].legend(title="— measured, - - predicted")
    figure.savefig(path, dpi=110)
