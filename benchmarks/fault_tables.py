"""Tables and plot of what `faults.py` measured."""

import itertools
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fault_networks
from fault_runs import ASYNC_STEPS
from tables import spread, table

MODES = ("sync", "async")
_NAMES = {"sync": "ring (synchronous)", "async": "parameter servers (asynchronous)"}
Entry = dict[str, Any]


def markdown(content: dict[str, Any]) -> str:
    """Returns the page."""
    versions = ", ".join(f"{name} {version}" for name, version in content["versions"].items())
    machine = content["machine"]
    lines = [
        "# Faults",
        "",
        f"`python benchmarks/faults.py`, begun {content['date']}, {machine['processor']}, {machine['cores']} cores. "
        f"{versions}.",
    ]
    for kind, page in (("schedules", _schedules), ("networks", _networks), ("kills", _kills)):
        entries = [entry for entry in content["measurements"] if entry["kind"] == kind]
        if entries:
            lines += page(entries, content["settings"])
    return "\n".join(lines) + "\n"


def _recovery(entries: Sequence[Entry]) -> list[str]:
    """Returns the cells that tell of recoveries: how many, seconds, steps that were made again."""
    seconds = sorted(s for entry in entries for s in entry["recovery_s"])
    repeated = [float(n) for entry in entries for n in entry["repeated"]]
    if not seconds:
        return ["0", "–", "–", "–"]
    tail = f"{seconds[math.ceil(0.95 * len(seconds)) - 1]:.1f} / {seconds[-1]:.1f}"
    return [str(len(seconds)), f"{statistics.median(seconds):.1f}", tail, spread(repeated, 0)]


def _latest(entries: Sequence[Entry]) -> list[Entry]:
    """Leaves out failures of runs that went well when they were tried again."""
    good = [entry for entry in entries if "failed" not in entry]
    names = [_name(entry) for entry in good]
    return [*good, *({_name(e): e for e in entries if "failed" in e and _name(e) not in names}).values()]


def _name(entry: Entry) -> tuple[Any, ...]:
    return tuple(entry.get(label) for label in ("row", "mode", "between_s", "number", "seed"))


def _schedules(entries: Sequence[Entry], _: dict[str, Any]) -> list[str]:
    rows = []
    for name in dict.fromkeys(entry["row"] for entry in entries):
        runs = _latest([entry for entry in entries if entry["row"] == name])
        good = [entry for entry in runs if "failed" not in entry]
        faults = str(sum(entry["faults"] for entry in good))
        rows.append([name, f"{len(good)} of {len(runs)}", faults, *_recovery(good)])
    heads = [
        "fault",
        "runs whose steps count once each",
        "faults",
        "recoveries",
        "seconds",
        "95 % / largest",
        "steps again",
    ]
    return [
        "",
        "## Schedules of faults",
        "",
        "A toy runtime on real pools and processes, a seed a run, each step checked to be in the state once and in its place, "
        "and no process left. Who is stopped is noticed after 10 s without a heartbeat, as by default. Faults that are noticed "
        "together are one recovery; its seconds are those until the job has come as far as before.",
        "",
        table(heads, rows),
    ]


def _networks(entries: Sequence[Entry], _: dict[str, Any]) -> list[str]:
    rows, latest = [], _latest(entries)
    for mode, name in itertools.product(MODES, fault_networks.ROWS):
        runs = [entry for entry in latest if (entry["mode"], entry["row"]) == (mode, name)]
        good = [entry for entry in runs if "failed" not in entry]
        if name == fault_networks.UNDISTURBED or not runs:
            continue
        calm = {e["seed"]: e for e in latest if (e["mode"], e["row"]) == (mode, fault_networks.UNDISTURBED)}
        off = [abs(e["loss"] / calm[e["seed"]]["loss"] - 1) for e in good if "loss" in calm.get(e["seed"], ())]
        ways = dict.fromkeys(" → ".join(["3", *map(str, e["workers"])]) for e in good)
        furthest = f"{max(off):.1e}" if off else "–"
        rows.append([f"{mode}, {name}", f"{len(good)} of {len(runs)}", *_recovery(good), ", ".join(ways), furthest])
    heads = ["mode, fault", "runs that went on", "recoveries", "seconds", "95 % / largest", "steps again", "workers"]
    return [
        "",
        "## Over network namespaces",
        "",
        f"Real runtimes, {fault_networks.MODEL}, {fault_networks.EPOCHS} epochs of {fault_networks.STEPS} steps, three hosts "
        "of one worker each behind links of 1 Gbit/s, `--workers 2..3`: a job with fewer takes what comes back. A "
        "host that vanishes says nothing any more, and is missed after 10 s. Seconds are those from then on until the job has "
        "come as far as before. Every step is in the optimizer's count once. Loss off: see below.",
        "",
        table([*heads, "loss off"], rows),
    ]


def _cells(entries: Sequence[Entry]) -> dict[tuple[str, float, int], list[tuple[Entry, Entry]]]:
    """Returns the disturbed runs by mode and how often workers were killed, each with the undisturbed one of its seed."""
    good = [entry for entry in entries if "failed" not in entry]
    calm = {(entry["mode"], entry["seed"]): entry for entry in good if not entry["between_s"]}
    cells: dict[tuple[str, float, int], list[tuple[Entry, Entry]]] = {}
    for entry in sorted(good, key=lambda e: (-MODES.index(e["mode"]), e["number"] == 0, e["between_s"]), reverse=True):
        beside = calm.get((entry["mode"], entry["seed"]))
        if entry["between_s"] and beside is not None:
            cells.setdefault((entry["mode"], entry["between_s"], entry["number"]), []).append((entry, beside))
    return cells


def _kills(entries: Sequence[Entry], settings: dict[str, Any]) -> list[str]:
    rows, failures = [], [entry for entry in _latest(entries) if "failed" in entry]
    for (mode, between_s, number), pairs in _cells(entries).items():
        runs = [run for run, _ in pairs]
        often = f"{number} in a run, {between_s:.0f} s" if number else f"{between_s:.0f} s"
        useful = spread([run["steps_per_s"] for run in runs], 1)
        ratios = spread([run["steps_per_s"] / calm["steps_per_s"] for run, calm in pairs], 2)
        kept = spread([_kept(run, settings) for run in runs], 2)
        off = max(abs(run["loss"] / calm["loss"] - 1) for run, calm in pairs)
        kills = str(sum(run["kills"] for run in runs))
        rows.append([f"{mode}, {often}", str(len(runs)), kills, *_recovery(runs), kept, useful, ratios, f"{off:.1e}"])
    heads = [
        "mode, mean time between kills",
        "seeds",
        "kills",
        "recoveries",
        "seconds",
        "95 % / largest",
        "steps again",
    ]
    lines = [
        "",
        "## Ring and parameter servers under kills",
        "",
        f"{settings['model']}, {settings['epochs']} epochs of {settings['steps']} steps (asynchronous: {ASYNC_STEPS} times as "
        "many, which take as long), batch 64, two workers of one host. "
        "Time kept: the part of it in which nothing was begun or made again, from the second epoch on. Useful: steps a second "
        "from then on, steps made again not counted; rate: the same over that of the undisturbed run with the same seed, which "
        "was minutes before, so it also has what the machine does meanwhile. Median (least–most). Every step is in the "
        "optimizer's count once. Loss off: the "
        "largest relative difference of the final loss from the undisturbed run's.",
        "",
        table([*heads, "time kept", "useful steps/s", "rate", "loss off"], rows),
        "",
        *_literature(entries, settings),
    ]
    if failures:
        lines += ["", "Runs that failed:", ""]
        lines += [f"- {e['mode']}, {e['between_s']:g} s, seed {e['seed']}: {e['failed']}" for e in failures]
    return lines


def _kept(run: Entry, settings: dict[str, Any]) -> float:
    """Returns the part of the time that was not spent on recovering."""
    steps = settings["steps"] * (ASYNC_STEPS if run["mode"] == "async" else 1) * (settings["epochs"] - 1)
    return float(1 - sum(run["recovery_s"]) * run["steps_per_s"] / steps)


def _literature(entries: Sequence[Entry], settings: dict[str, Any]) -> list[str]:
    """Returns what is claimed of servers and of a ring, and what was kept here."""
    kept = []
    cells = _cells(entries)
    for between_s in sorted({between_s for _, between_s, number in cells if not number}):
        pairs = [cells.get((mode, between_s, 0)) for mode in MODES]
        if all(pairs):
            ring, servers = (statistics.median(_kept(run, settings) for run, _ in each or ()) for each in pairs)
            kept.append(f"{ring:.2f} and {servers:.2f} ({between_s:.0f} s)")
    return [
        "What is claimed: with a ring a machine that fails delays all of the training, with servers the other workers go on "
        "(Dean et al., *Large Scale Distributed Deep Networks*, 2012, of Downpour SGD), and a server is replaced within a "
        "second without a pause, from a copy that another one keeps (Li et al., *Scaling Distributed Machine Learning with "
        "the Parameter Server*, 2014). Here nobody goes on: in both modes a worker that dies ends the job, which begins again "
        "from its snapshot (decision 0053), since by default each worker holds a part of the parameters. So servers have no "
        "advantage by construction; what is measured is how long beginning again takes, and how much is made again. "
        f"Of their time ring and servers keep, by the mean time between kills: {', '.join(kept) or 'not measured'}.",
    ]


def plot(content: dict[str, Any], path: Path) -> None:
    """Draws the part of the time that is kept over the mean time between kills, of both modes; nothing where there is none."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    cells = _cells([entry for entry in content["measurements"] if entry["kind"] == "kills"])
    figure, axes = pyplot.subplots(figsize=(6, 4))
    for mode in MODES:
        points = sorted(
            (between_s, pairs) for (m, between_s, number), pairs in cells.items() if m == mode and not number
        )
        if not points:
            continue
        kept = [[_kept(run, content["settings"]) for run, _ in pairs] for _, pairs in points]
        middle = [statistics.median(each) for each in kept]
        below = [m - min(each) for m, each in zip(middle, kept, strict=True)]
        above = [max(each) - m for m, each in zip(middle, kept, strict=True)]
        where = [between_s for between_s, _ in points]
        axes.errorbar(where, middle, yerr=[below, above], marker="o", capsize=3, label=_NAMES[mode])
    axes.set(xscale="log", xlabel="mean seconds between kills of a worker")
    axes.set_ylim(0, max(1.1, axes.get_ylim()[1]))
    ticks = sorted({between_s for _, between_s, number in cells if not number})
    axes.set_xticks(ticks, [f"{each:.0f}" for each in ticks])
    axes.minorticks_off()
    axes.set_ylabel("part of the time that is kept")
    axes.axhline(1.0, color="grey", linewidth=0.5)
    if cells:
        axes.legend()
        figure.savefig(path, dpi=120, bbox_inches="tight")
    pyplot.close(figure)
