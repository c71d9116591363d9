"""Turns the raw measurements of `async_rate.py` into the tables of `results/async_rate.md`."""

from collections.abc import Callable

from async_rows import ALL_MODELS, BOUNDS, COMPUTE_BOUND, ROWS, STOCK, best_variant
from rate_tables import Comparison, failures, good, rate_by_round, rates, ratios
from record import Content, heading
from rows import MODELS
from tables import spread, table

COMPARISONS = [
    Comparison("fdt2", STOCK, dict.fromkeys(MODELS, 1.5), "the best of TensorFlow's own"),
    Comparison("fdt2_asgd", STOCK, dict.fromkeys(MODELS, 1.8), "the best of TensorFlow's own"),
    *(Comparison("fdt2", (name,)) for name in STOCK),
    Comparison("hosts2", STOCK, dict.fromkeys(MODELS, 1.3), "the best of TensorFlow's own"),
    Comparison("hosts2_asgd", STOCK, {}, "the best of TensorFlow's own"),
    Comparison("hosts2_open", STOCK, {}, "the best of TensorFlow's own"),
    # What compensation may cost: a tenth of the rate.
    Comparison("fdt2", ("fdt2_asgd",), dict.fromkeys(MODELS, 0.9)),
    Comparison("fdt2", ("fdt1",), {COMPUTE_BOUND: 1.7}),
    Comparison("fdt2", ("fdt1_core",)),
    Comparison("fdt2", ("keras",)),
]


def markdown(content: Content) -> str:
    """Returns all tables; what has not been measured is left out."""
    settings = content["settings"]
    what = (
        f"Medians of {settings['rounds']} alternated rounds (least–most), steps of all workers together. A step is a "
        "batch of 64 and one update; the first epoch is warm-up. TensorFlow's own (`ParameterServerStrategy`, after its "
        "guide, Keras 2; × n: n steps a closure, or an execution): 2 workers, one parameter server and a coordinator are "
        "processes that meet on loopback. FDT's one-host form is one process of TensorFlow, its several-host form a pool and a "
        "host that joined, one worker each, on loopback too. Plain Keras has all cores. "
        "The raw figures, with the machine's load at each, are in the JSON."
    )
    parts = ["# Asynchronous step rate", heading(content), what]
    parts += ["## Steps per second", rates(content, ROWS, ALL_MODELS)]
    parts += ["## Ratios, within each round", ratios(content, ROWS, ALL_MODELS, COMPARISONS)]
    parts += [*_bounds(content), *_variants(content), *failures(content)]
    return "\n\n".join(parts) + "\n"


def _bounds(content: Content) -> list[str]:
    """Returns what bounds the rate on one host, and what part of that is reached."""
    measured = good(content, "bound")
    models = [model for model in ALL_MODELS if any(entry["model"] == model for entry in measured)]
    if not models:
        return []

    def by_round(model: str, name: str) -> dict[int, float]:
        return {entry["round"]: entry[name] for entry in measured if entry["model"] == model}

    def line(title: str, values: Callable[[str], list[float]], digits: int = 1) -> list[str]:
        return [title, *(spread(values(model), digits) for model in models)]

    lines = [
        line("gradients, core-milliseconds", lambda model: [*by_round(model, "compute_ms").values()], 2),
        line("memory, GB/s of all cores", lambda model: [*by_round(model, "memory_gb_per_s").values()]),
    ]
    for row, name in BOUNDS.items():
        rule, most = name.replace("_", "-"), f"{name}_steps_per_s"
        lines += [
            line(f"{rule}: MB of an update", lambda model, name=name: [by_round(model, f"{name}_bytes")[0] / 1e6]),
            line(f"{rule}: steps per second at most", lambda model, most=most: [*by_round(model, most).values()]),
            line(
                f"{ROWS[row].title} / that",
                lambda model, row=row, most=most: [
                    rate / by_round(model, most)[number] for number, rate in rate_by_round(content, row, model).items()
                ],
                2,
            ),
        ]
    note = (
        "What a step cannot be without: its gradients, as a worker computes them with one thread, measured on all cores at "
        "once, and the bytes that an update reads and writes, at the rate at which all cores together read two vectors and "
        "write one. The fastest of ten half seconds each."
    )
    return ["## Bounds on one host", note, table(["", *models], lines)]


def _variants(content: Content) -> list[str]:
    """Which settings TensorFlow's own were measured with."""
    tried = [entry for entry in content["measurements"] if entry["kind"] == "variant"]
    if not tried:
        return []
    names = [name for name in STOCK if any(entry["row"] == name for entry in tried)]
    lines = [[ROWS[name].title, *(_choice(tried, name, model) for model in MODELS)] for name in names]
    note = "Each was tried first, once a model, with the settings shown; the fastest is what the rounds measured."
    return ["## Settings of TensorFlow's own", table(["", *MODELS], lines), note]


def _choice(tried: list[Content], name: str, model: str) -> str:
    """Returns all that was tried with its steps per second, the best marked."""
    best = " ".join(best_variant(tried, name, model))
    cells = []
    for entry in tried:
        if (entry["row"], entry["model"]) == (name, model) and "failed" not in entry:
            mark = "**" if entry["variant"] == best else ""
            cells.append(f"{mark}{entry['variant'].replace('--', '')}: {entry['steps_per_s']:.1f}{mark}")
    return ", ".join(cells) or "–"
