"""Makes the output of `fdt predict`: a table, a file that can be read back, a plot."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

from fdt.base.memory_need import MemoryNeed
from fdt.base.versions import versions
from fdt.errors import UsageError
from fdt.forecast.links import Hosts, Machine
from fdt.forecast.step_time import (
    CENTRAL,
    FORMS,
    RING,
    SHARDED,
    Forecast,
    Timed,
    Workload,
    can_be_sharded,
    fastest,
    forecast,
    pays_up_to,
)

_FORMAT = 1
# A smaller speed-up counts as none.
_FASTER = 1.05
# The forms' names for people.
NAMES = {
    (RING, "sync"): "ring",
    (CENTRAL, "sync"): "one server, in step",
    (SHARDED, "sync"): "sharded servers, in step",
    (CENTRAL, "async"): "one server",
    (SHARDED, "async"): "sharded servers",
}
# The options of `fdt run` for each form.
_OPTIONS = {
    (RING, "sync"): "--mode sync",
    (CENTRAL, "sync"): "--mode async --max-delay 0",
    (SHARDED, "sync"): "--mode async --ps {hosts} --max-delay 0",
    (CENTRAL, "async"): "--mode async",
    (SHARDED, "async"): "--mode async --ps {hosts}",
}


@dataclasses.dataclass(frozen=True)
class Prediction:
    """A training step and the network of its workers, from which forecasts for some numbers of workers follow.

    Attributes:
        workload: What was measured.
        transport: What connects the workers.
        workers: The numbers of workers.
        batch: "global" or "per-worker", see `fdt.forecast.step_time.forecast`.
        price: Of one host for an hour; None if not given.
        memory_bytes: What each worker may use of memory; None if not given.
    """

    workload: Workload
    transport: Hosts | Machine
    workers: tuple[int, ...]
    batch: str = "global"
    price: float | None = None
    memory_bytes: int | None = None

    def forecasts(self) -> list[Forecast]:
        """Returns a forecast for each possible form and number of workers."""
        return [
            forecast(self.workload, self.transport.network(mode, n), form, mode, n, batch=self.batch, price=self.price)
            for form, mode in self._forms()
            for n in self.workers
            if form != SHARDED or can_be_sharded(self.workload, self.transport.network(mode, n).hosts(n))
        ]

    def distributed(self) -> list[Forecast]:
        """Returns the forecasts with two workers or more."""
        return [found for found in self.forecasts() if found.workers > 1]

    def of(self, form: str, mode: str, workers: int) -> Forecast:
        """Returns the forecast of one form and number of workers."""
        network = self.transport.network(mode, workers)
        return forecast(self.workload, network, form, mode, workers, batch=self.batch, price=self.price)

    def has(self, form: str, mode: str) -> bool:
        """Returns whether there are forecasts of a form."""
        return (form, mode) in self._forms()

    def _forms(self) -> list[tuple[str, str]]:
        # On one machine servers are devices of one process: sharding them changes next to nothing.
        return [f for f in FORMS if isinstance(self.transport, Hosts) or f in ((RING, "sync"), (CENTRAL, "async"))]

    # ---- for people -------------------------------------------------------------------------------------------------

    def text(self) -> str:
        """Returns the printable text."""
        return "\n".join([*self._measured(), "", *self._table(), "", *self._advice()])

    def _measured(self) -> list[str]:
        load = self.workload
        steps = "a number of steps that its data do not tell" if load.steps is None else f"{load.steps} steps"
        lines = [
            f"{load.script}: {steps} of {load.batch} rows; gradients of {_bytes(load.pushed_bytes)} in "
            f"{len(load.dense) + len(load.tables)} tensors"
            + (f", tables' as {load.row_bytes:.0f} bytes a row" if load.tables else "")
        ]
        if load.exchanges:
            times = "once" if load.exchanges == 1 else f"{load.exchanges} times"
            lines.append(
                f"synchronous workers wait for each other {times} in a step beside that: in layers that normalise over the "
                "batch, for example"
            )
        sizes = ", ".join(f"{milliseconds(t.seconds)} ({t.rows} rows)" for t in load.step)
        worker = {None: "of the pool", 1: "with 1 thread"}.get(load.threads, f"with {load.threads} threads")
        lines.append(
            f"measured on one worker {worker}: a step takes {sizes}; in place {milliseconds(load.local)}; a parameter server's "
            f"update {milliseconds(load.update)}"
        )
        if isinstance(self.transport, Hosts):
            rate = self.transport.bandwidth * 8
            times = f"latency {milliseconds(self.transport.latency)}"
            if self.transport.queueing:
                times += f", queues of {milliseconds(self.transport.queueing)}"
            if self.transport.rounded:
                times += ", numbers rounded to 16 bits on their way"
            lines.append(f"assumed: {_slots(self.transport)}, links of {_bits(rate)}, {times}")
        else:
            rate = self.transport.bandwidth / 1e6
            lines.append(f"assumed: all workers on this machine; two ranks exchanged {rate:.0f} MB/s")
        if load.memory is not None:
            lines.append(load.memory.line(self.workers, self.memory_bytes))
        if self.batch == "per-worker":
            lines.append("the ring gives every worker a batch of the script's size: N of its batches in a step")
        return lines

    def _table(self) -> list[str]:
        head = ["workers", "form", "a step", "from", "to", "speed-up", "efficiency", "all steps"]
        if self.price is not None:
            head.append("cost")
        rows = [head]
        for found in self.distributed():
            row = [
                str(found.workers),
                NAMES[found.form, found.mode],
                milliseconds(found.step.estimate),
                milliseconds(found.step.best),
                milliseconds(found.step.worst),
                f"{found.speedup:.2f}",
                f"{found.efficiency:.0%}",
                "-" if found.seconds is None else _time(found.seconds),
            ]
            if self.price is not None:
                row.append("-" if found.cost is None else f"{found.cost:.2f}")
            rows.append(row)
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        return [
            "  ".join(
                cell.ljust(w) if i == 1 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        ]

    def _advice(self) -> list[str]:
        found = self.distributed()
        if not found:
            return ["Nothing is distributed over one worker."]
        best = fastest(found)
        if best.speedup < _FASTER:
            return [
                f"No form is faster than the script in place; the best is {NAMES[best.form, best.mode]} on {best.workers} "
                f"({best.speedup:.2f}). {self._why(best)}"
            ]
        lines = [
            f"Fastest: {NAMES[best.form, best.mode]} on {best.workers} workers, {best.speedup:.2f} times the script in place "
            f"(fdt run {_OPTIONS[best.form, best.mode].format(hosts=best.hosts)} --workers {best.workers})."
        ]
        for form, mode in self._forms():
            of_form = [f for f in found if (f.form, f.mode) == (form, mode)]
            if not of_form or fastest(of_form).speedup < _FASTER:
                continue
            paying = pays_up_to(of_form)
            if paying < max(f.workers for f in of_form):
                lines.append(f"{NAMES[form, mode].capitalize()}: more than {paying} workers do not pay.")
        lines.append(
            "An asynchronous step is made with older weights than a synchronous one: as many steps may learn less."
        )
        return lines

    def _why(self, best: Forecast) -> str:
        exchange = best.step.estimate * best.workers - self.workload.gradient
        if exchange > self.workload.gradient:
            return "The exchange of gradients takes longer than their computation: larger batches would help."
        return "The step is too short to be divided: larger batches would help."

    # ---- for programs -----------------------------------------------------------------------------------------------

    def content(self) -> dict[str, Any]:
        """Returns what `save` writes."""
        kind = "hosts" if isinstance(self.transport, Hosts) else "machine"
        return {
            "format": _FORMAT,
            "kind": "prediction",
            "fdt": versions().fdt,
            "workload": dataclasses.asdict(self.workload),
            "transport": {"kind": kind, **dataclasses.asdict(self.transport)},
            "workers": list(self.workers),
            "batch": self.batch,
            "price": self.price,
            "memory_bytes": self.memory_bytes,
            "forecasts": [dataclasses.asdict(found) for found in self.forecasts()],
        }

    def save(self, path: Path) -> None:
        """Writes a JSON file that `read` understands."""
        path.write_text(json.dumps(self.content(), indent=2) + "\n")

    def plot(self, path: Path) -> None:
        """Plots speed-up over workers, with a range for each.

        Raises:
            UsageError: matplotlib is not installed.
        """
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise UsageError("--plot needs matplotlib; install it with: pip install 'fdt[plot]'") from error
        found_all = self.forecasts()
        figure = Figure(figsize=(8, 5), layout="constrained")
        axes = figure.add_subplot()
        for form, mode in self._forms():
            found = [f for f in found_all if (f.form, f.mode) == (form, mode)]
            counts = [f.workers for f in found]
            (line,) = axes.plot(counts, [f.speedup for f in found], marker="o", label=NAMES[form, mode])
            low, high = ([self.workload.local / getattr(f.step, end) for f in found] for end in ("worst", "best"))
            axes.fill_between(counts, low, high, alpha=0.15, color=line.get_color(), linewidth=0)
        axes.plot(self.workers, self.workers, color="grey", linestyle=":", label="ideal")
        axes.set_xscale("log", base=2)
        axes.set_xticks(self.workers, [str(n) for n in self.workers])
        axes.set_xlabel("workers")
        axes.set_ylabel("speed-up, relative to the script in place")
        axes.set_title(f"{Path(self.workload.script).name}, predicted")
        axes.set_ylim(bottom=0)
        axes.legend()
        axes.grid(alpha=0.3)
        figure.savefig(path, dpi=120)


def read(path: Path) -> Prediction:
    """Reads a file that `Prediction.save` wrote.

    Raises:
        UsageError: The file cannot be read, is no prediction, or has another version.
    """
    try:
        return parsed(json.loads(path.read_text()), str(path))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UsageError(
            f"cannot read a prediction: {error}. Expected a file of `fdt predict --json`: {path}"
        ) from error


def parsed(content: Any, name: str) -> Prediction:
    """Makes a Prediction from the result of `Prediction.content`.

    Raises:
        UsageError: The content is no prediction, or has another version.
    """
    if not isinstance(content, dict) or content.get("kind") != "prediction":
        raise UsageError(f"expected what `fdt predict --json` wrote. Received: {name}")
    if content.get("format") != _FORMAT:
        raise UsageError(
            f"{name} has format {content.get('format')} (fdt {content.get('fdt', 'unknown')}); this is fdt {versions().fdt}, "
            f"which reads format {_FORMAT}. Make it again with `fdt predict --json`"
        )
    try:
        load, transport = dict(content["workload"]), dict(content["transport"])
        workload = Workload(
            **{
                **load,
                "step": tuple(Timed(**timed) for timed in load["step"]),
                "dense": tuple(load["dense"]),
                "tables": tuple(load["tables"]),
                "by_rows": tuple(load.get("by_rows", ())),
                "cut": tuple((num_bytes, least) for num_bytes, least in load.get("cut", ())),
                "memory": MemoryNeed(**load["memory"]) if load.get("memory") else None,
            }
        )
        if transport.pop("kind") == "hosts":
            joined: Hosts | Machine = Hosts(**transport)
        else:
            pairs = {mode: tuple(pair) for mode, pair in transport.pop("contention").items()}
            joined = Machine(contention=pairs, **transport)
        return Prediction(
            workload,
            joined,
            tuple(content["workers"]),
            content["batch"],
            content["price"],
            content.get("memory_bytes"),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{name} is no whole prediction ({type(error).__name__}: {error})") from error


def milliseconds(seconds: float) -> str:
    """Returns a short time as text."""
    if seconds < 0.01:
        return f"{seconds * 1e3:.2f} ms"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _slots(transport: Hosts) -> str:
    if transport.slots == 1:
        return "one worker a host"
    return f"{transport.slots} workers a host, which are joined by more than its link"


def _time(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02} min"


def _bytes(count: float) -> str:
    return f"{count / 1e6:.2f} MB" if count >= 1e4 else f"{count:.0f} bytes"


def _bits(rate: float) -> str:
    power = min(3, max(0, int(math.log10(max(rate, 1)) // 3)))
    # Three significant digits: a measured rate has more than are meaningful.
    return f"{float(f'{rate / 1000**power:.3g}'):g} {('', 'k', 'M', 'G')[power]}bit/s"
