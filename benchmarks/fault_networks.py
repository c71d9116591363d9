"""Trainings of the real runtimes over network namespaces, whose network is cut or one of whose hosts vanishes."""

import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import processes
from lab.pool import Lab

FIT = str(processes.ROOT / "benchmarks" / "models" / "fit.py")
MODEL, EPOCHS, STEPS = "mlp", 4, 250
CUT_S = 30.0
UNDISTURBED = "undisturbed"
Fault = Callable[[Lab, str], object]


def _cut(lab: Lab, host: str) -> None:
    lab.network.set_link(host, "down")
    threading.Event().wait(CUT_S)
    lab.network.set_link(host, "up")


def _replace(lab: Lab, host: str) -> None:
    lab.lose(host)
    lab.join(host)


ROWS: dict[str, Fault | None] = {
    UNDISTURBED: None,
    f"network of a host cut for {CUT_S:.0f} s": _cut,
    "host lost for good": Lab.lose,
    "host lost, another joins": _replace,
}


class _Once:
    """Does harm to a host, a while after the first epoch; `processes.run` calls it now and then."""

    def __init__(self, lab: Lab, fault: Fault, seed: int, begun: Path) -> None:
        self._lab, self._fault, self._begun = lab, fault, begun
        chosen = random.Random(seed)
        self._host, self._wait_s = chosen.choice(lab.network.hosts), chosen.uniform(0.5, 5.0)
        self._due_s: float | None = None
        self._failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._harm, name="harm")

    def __call__(self, _: int) -> None:
        if self._due_s is None:
            self._due_s = time.monotonic() + self._wait_s if self._begun.exists() else None
        elif time.monotonic() >= self._due_s and self._thread.ident is None:
            self._thread.start()

    def _harm(self) -> None:
        try:
            self._fault(self._lab, self._host)
        except BaseException as error:
            self._failed.append(error)

    @contextmanager
    def fired(self) -> Iterator[None]:
        """Sees at the end of a `with` block that it was done.

        Raises:
            RunFailedError: It was not.
        """
        yield
        if self._thread.ident is None:
            raise processes.RunFailedError("The run ended before its fault")
        self._thread.join()
        if self._failed:
            raise processes.RunFailedError(str(self._failed[0]))


def trained(row: str, mode: str, seed: int) -> dict[str, Any]:
    """Trains on three hosts, one worker each, two at least; returns rate, loss, and the faults that were survived.

    Raises:
        RunFailedError: It did not end well, or a step does not count once.
    """
    fault = ROWS[row]
    with tempfile.TemporaryDirectory() as folder, Lab(2, "1Gbit", mode=mode, pool_workers=1) as lab:
        begun = Path(folder) / "first-epoch"
        words = ["--epochs", str(EPOCHS), "--steps", str(STEPS), "--begun", str(begun)]
        command = ["--mode", mode, "--workers", "2..3", FIT, MODEL, *words]
        if fault is None:
            run = lab.run(command)
        else:
            harm = _Once(lab, fault, seed, begun)
            with harm.fired():
                run = lab.run(command, watch=harm)
    result = processes.Finished(run.output, run.seconds).result()
    faults = run.report["faults"]
    if result["iterations"] != EPOCHS * STEPS:
        raise processes.RunFailedError(f"{result['iterations']} steps were counted, and there were {EPOCHS * STEPS}")
    if fault is not None and not faults:
        raise processes.RunFailedError("No fault was noticed")
    return {
        "seconds": sum(result["epoch_seconds"]),
        "loss": result["loss"],
        "recovery_s": [each["seconds"] for each in faults],
        "repeated": [each["repeated"] for each in faults],
        "workers": [each["workers"] for each in faults],
        "causes": [each["cause"] for each in faults],
    }
