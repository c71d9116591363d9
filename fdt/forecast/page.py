"""Writes the page and the plots of a comparison; the page contains the comparison's data, too."""

import base64
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdt.errors import UsageError
from fdt.forecast.comparison import COLUMNS, IN_PLACE, PARTS, failures, rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "comparison.html"
_TEMPLATE = Path(__file__).with_suffix(".html")
_SERIES = (
    ("cores", "cores in use", 1.0),
    ("memory_bytes", "memory, GB", 1e9),
    ("network", "network of the host, MB/s", 1e6),
)


def check() -> None:
    """Raises UsageError if the packages that write the page and draw plots are not installed."""
    try:
        import jinja2  # noqa: F401
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UsageError(f"the page needs {error.name}; install it with: pip install 'fdt[plot]'") from error


def write(content: Mapping[str, Any], folder: Path) -> None:
    """Writes the page and, beside it, the plots that it shows."""
    import jinja2

    plots = {}
    for name, title, figure in _figures(content):
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=120)
        (folder / f"{name}.png").write_bytes(picture.getvalue())
        plots[title] = base64.b64encode(picture.getvalue()).decode()
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    template = environment.from_string(_TEMPLATE.read_text())
    page = template.render(
        content=content,
        columns=COLUMNS,
        rows=rows(content),
        failures=failures(content),
        plots=plots,
        data=_inert(content),
    )
    (folder / NAME).write_text(page)


def _inert(content: Mapping[str, Any]) -> str:
    """Returns JSON that cannot end an HTML element, whatever the script's name is."""
    return json.dumps(content, indent=1).replace("<", "\\u003c")


def _figures(content: Mapping[str, Any]) -> list[tuple[str, str, "Figure"]]:
    """Returns file name, title and figure of each plot for which there are numbers."""
    found = [
        ("speedup", "Speed-up, measured and predicted", _speedup(content)),
        ("steps", "What a worker's step is made of", _steps(content)),
        ("bytes", "Bytes exchanged in a step", _bytes(content)),
        ("use", "What the processes used", _use(content)),
    ]
    return [(name, title, figure) for name, title, figure in found if figure is not None]


def _figure(rows: int = 1, height: float = 4.5) -> tuple["Figure", list["Axes"]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, height), layout="constrained")
    axes = figure.subplots(rows, squeeze=False)[:, 0]
    return figure, list(axes)


def _good(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [run for run in content["runs"] if run["error"] is None]


def _speedup(content: Mapping[str, Any]) -> "Figure | None":
    runs = [run for run in _good(content) if run["form"] != IN_PLACE and run["speedup"] is not None]
    if not runs:
        return None
    figure, (axes,) = _figure()
    local = next(run["step"] for run in content["runs"] if run["form"] == IN_PLACE)
    for form in dict.fromkeys((run["form"], run["mode"]) for run in runs):
        of_form = [run for run in runs if (run["form"], run["mode"]) == form]
        name = of_form[0]["name"].rpartition(",")[0]
        counts = [run["workers"] for run in of_form]
        (line,) = axes.plot(counts, [run["speedup"] for run in of_form], marker="o", label=f"{name}, measured")
        known = [run for run in of_form if run["predicted"] is not None]
        if known:
            # Relative to plain python as measured here.
            axes.errorbar(
                [run["workers"] for run in known],
                [local / run["predicted"]["estimate"] for run in known],
                yerr=_ranges(local, known),
                color=line.get_color(),
                linestyle=":",
                marker="x",
                capsize=3,
                label=f"{name}, predicted",
            )
    axes.axhline(1.0, color="grey", linewidth=0.8)
    axes.set_xticks(sorted({run["workers"] for run in runs}))
    axes.set(xlabel="workers", ylabel="times plain python")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def _ranges(local: float, runs: list[dict[str, Any]]) -> list[list[float]]:
    """Returns the distances of the worst and best speed-up from the expected one."""
    estimates = [local / run["predicted"]["estimate"] for run in runs]
    worst = [local / run["predicted"]["worst"] for run in runs]
    best = [local / run["predicted"]["best"] for run in runs]
    below = [max(0.0, e - w) for e, w in zip(estimates, worst, strict=True)]
    return [below, [max(0.0, b - e) for e, b in zip(estimates, best, strict=True)]]


def _steps(content: Mapping[str, Any]) -> "Figure | None":
    runs = [run for run in _good(content) if run["parts"]]
    if not runs:
        return None
    figure, (axes,) = _figure(height=1.2 + 0.5 * len(runs))
    left = [0.0] * len(runs)
    names = [run["name"] for run in runs]
    for part in PARTS:
        widths = [run["parts"][part] * 1e3 for run in runs]
        axes.barh(names, widths, left=left, label=part)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds of one worker")
    axes.legend(ncols=len(PARTS), loc="lower center", bbox_to_anchor=(0.4, 1.0), frameon=False)
    return figure


def _bytes(content: Mapping[str, Any]) -> "Figure | None":
    runs = [run for run in _good(content) if run["parts"]]
    if not runs:
        return None
    figure, (axes,) = _figure(height=1.0 + 0.4 * len(runs))
    bars = axes.barh([run["name"] for run in runs], [run["bytes"] / 1e6 for run in runs])
    axes.bar_label(bars, fmt="%.2f", padding=3)
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set_xlabel("MB in a step, of all workers")
    return figure


def _use(content: Mapping[str, Any]) -> "Figure | None":
    runs = [run for run in _good(content) if any(len(process["samples"]) > 1 for process in run["processes"])]
    if not runs:
        return None
    gpus = any(sample["gpus"] for run in runs for process in run["processes"] for sample in process["samples"])
    series = (*_SERIES, *((("gpu", "GPUs in use", 1.0),) if gpus else ()))
    figure, all_axes = _figure(rows=len(series), height=2.3 * len(series) + 0.8)
    for axes, (name, label, unit) in zip(all_axes, series, strict=True):
        for run in runs:
            points = used(run["processes"], name)
            axes.plot([time for time, _ in points], [value / unit for _, value in points], label=run["name"])
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    all_axes[-1].set_xlabel("seconds since the processes' first sample")
    figure.legend(*all_axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize="small")
    return figure


def used(processes: list[dict[str, Any]], name: str) -> list[tuple[float, float]]:
    """Returns what all processes of a run used together, for each second.

    Args:
        processes: As in `Comparison.content`.
        name: "cores" or "memory_bytes", which are summed over processes; or "network" (bytes per second, sent and received) or
            "gpu" (1 for each busy GPU), which are per host, so that one process of each host counts.

    Returns:
        (seconds since the first sample of all, value).
    """
    sampled = [process for process in processes if process["samples"]]
    if name in ("network", "gpu"):
        sampled = list({process["host"]: process for process in reversed(sampled)}.values())
    start_s = min(process["samples"][0]["time_s"] for process in sampled)
    together: dict[int, float] = {}
    for process in sampled:
        for second, value in _of_process(process["samples"], name, start_s).items():
            together[second] = together.get(second, 0.0) + value
    return [(float(second), value) for second, value in sorted(together.items())]


def _of_process(samples: list[dict[str, Any]], name: str, start_s: float) -> dict[int, float]:
    values: dict[int, float] = {}
    before = None
    for sample in samples:
        second = round(sample["time_s"] - start_s)
        if name == "network":
            if before is not None and sample["time_s"] > before["time_s"]:
                moved = sum(sample[way] - before[way] for way in ("sent_bytes", "received_bytes"))
                values[second] = moved / (sample["time_s"] - before["time_s"])
        elif name == "gpu":
            values[second] = sum(gpu["utilization"] for gpu in sample["gpus"])
        else:
            values[second] = sample[name]
        before = sample
    return values
