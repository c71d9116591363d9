"""`%load_ext fdt` in a real Jupyter kernel."""

import json
import queue
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.helpers import processes

_LIMIT_S = 240.0
_MODEL = """
import keras, numpy as np, tensorflow as tf
x = np.random.RandomState(0).rand(32, 4).astype("float32")
y = x.sum(1, keepdims=True)
def build():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model
def fitted():
    return build().fit(x, y, batch_size=8, epochs=2, verbose=0).history["loss"]
"""
_LOOP = """
weight = tf.Variable([[0.0]] * 4)
@tf.function
def step(rows, targets):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((rows @ weight - targets) ** 2)
    weight.assign_sub(0.1 * tape.gradient(loss, weight))
    return loss
def looped():
    weight.assign(tf.zeros_like(weight))
    return [float(step(tf.constant(x[i:i + 8]), tf.constant(y[i:i + 8]))) for i in range(0, 32, 8)]
"""


class Kernel:
    """A kernel, and a client of it."""

    def __init__(self, folder: Path):
        from jupyter_client.manager import KernelManager

        self.manager = KernelManager()
        self.manager.start_kernel(env=processes.environment(), cwd=str(folder))
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=_LIMIT_S)

    def run(self, cell: str) -> str:
        """Runs a cell to its end; returns what is seen below it."""
        return self.seen(self.client.execute(cell))

    def seen(self, message: str, until: str | None = None) -> str:
        """Returns what a cell has shown when it has ended, or has shown a text."""
        text, end_s = "", time.monotonic() + _LIMIT_S
        while time.monotonic() < end_s and (until is None or until not in text):
            try:
                told: dict[str, Any] = self.client.get_iopub_msg(timeout=1)
            except queue.Empty:
                assert self.manager.is_alive(), text
                continue
            if told["parent_header"].get("msg_id") != message:
                continue
            content = told["content"]
            if content.get("execution_state") == "idle":
                return text
            text += content.get("text", "") + "\n".join(content.get("traceback", []))
            text += content.get("data", {}).get("text/plain", "")
        assert until is not None and until in text, text
        return text

    def value(self, expression: str) -> Any:
        """Returns what an expression of plain values is worth."""
        shown = self.run(f"import json; print('VALUE', json.dumps({expression}))")
        found = re.search(r"^VALUE (.*)$", shown, re.MULTILINE)
        assert found is not None, shown
        return json.loads(found[1])

    def processes(self) -> list[psutil.Process]:
        """Returns the kernel's own, and all that it has started."""
        process = psutil.Process(self.manager.provisioner.pid)
        return [process, *process.children(recursive=True)]


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Kernel]:
    pytest.importorskip("ipykernel", reason="for developers, and for people with notebooks")
    running = Kernel(tmp_path)
    try:
        yield running
    finally:
        running.client.stop_channels()
        running.manager.shutdown_kernel(now=True)


def test_what_a_kernel_trains_trains_on_workers_until_it_is_detached(kernel: Kernel) -> None:
    kernel.run(_MODEL + _LOOP)
    here = kernel.value("[fitted(), looped()]")
    kernel.run("%load_ext fdt")
    shown = kernel.run("%fdt attach --mode sync --workers 2")
    assert "traced before, so traced again when they are called: step (line" in shown
    there = kernel.value("[fitted(), looped()]")
    assert "attached: sync, 2 workers; 8 steps so far" in kernel.run("%fdt status")
    assert there[0] == pytest.approx(here[0], rel=1e-4) and there[1] == pytest.approx(here[1], rel=1e-4)
    assert "Error: " not in kernel.run("%fdt detach")
    after = kernel.value("[fitted(), looped()]")
    assert after[0] == pytest.approx(here[0], rel=1e-6) and after[1] == pytest.approx(here[1], rel=1e-6)
    assert "not attached" in kernel.run("%fdt status")
    shown = kernel.run("%fdt detach")
    assert "UsageError: nothing is attached" in shown and "line" not in shown


def test_an_interrupt_stops_the_training_and_a_restart_ends_the_job(kernel: Kernel) -> None:
    kernel.run(_MODEL)
    kernel.run("%load_ext fdt")
    kernel.run("%fdt attach --workers 2")
    kernel.run("model = build()")
    running = kernel.client.execute("model.fit(x, y, batch_size=8, epochs=100_000, verbose=2)")
    shown = kernel.seen(running, until="Epoch 3/")
    # In plain python one interrupt in a hundred comes while TensorFlow frees a function, and is lost: people press twice.
    for epoch in (2000, 4000, 6000):
        if "KeyboardInterrupt" not in shown:
            kernel.manager.interrupt_kernel()
            shown = kernel.seen(running, until=f"Epoch {epoch}/")
    assert "KeyboardInterrupt" in shown
    steps = kernel.value("int(model.optimizer.iterations.numpy())")
    assert 8 <= steps < 400_000
    assert kernel.value("len(fitted())") == 2, "the next training goes on as if nothing had been"
    _, *others = kernel.processes()
    assert others, "the run's own pool and its workers"
    kernel.manager.restart_kernel(now=True)
    _, alive = psutil.wait_procs(others, timeout=60)
    assert alive == []


@pytest.mark.thorough
def test_a_notebook_is_run_by_the_command(tmp_path: Path) -> None:
    cells = [_MODEL, "%load_ext fdt", "%fdt attach --workers 2", "print('losses', fitted())", "%fdt detach"]
    about = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}}
    path = tmp_path / "train.ipynb"
    path.write_text(json.dumps({**about, "cells": [{"cell_type": "code", "source": cell} for cell in cells]}))
    plain = tmp_path / "train.py"
    plain.write_text("\n".join(cell for cell in cells if not cell.startswith("%")))
    finished = processes.run_fdt(path, workers=2, limit_s=_LIMIT_S).expect(0)
    assert "sync training on 2 workers" in finished.stderr
    alone = processes.run_python(plain, limit_s=_LIMIT_S).expect(0)
    found, expected = (
        [float(number) for number in re.findall(r"\d\.\d+(?:e-\d+)?", each.stdout)] for each in (finished, alone)
    )
    assert len(found) == 2 and found == pytest.approx(expected, rel=1e-4)
