"""Programs with eager steps, as they are and with their steps traced: both leave the same values of the same types."""

import ast
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fdt.base.patch import Patches
from fdt.capture.loop.outlined import Outlined
from fdt.capture.step import seeds, unseen
from fdt.script.outline.rewriting import RUN, Site, outlined

_HEAD = """
import numpy as np, tensorflow as tf
x = np.random.RandomState(0).rand(40, 3).astype("float32")
y = x.sum(1, keepdims=True)
w = tf.Variable([[0.1], [0.2], [0.3]])
"""


@pytest.fixture(autouse=True)
def _installed() -> Iterator[None]:
    patches = Patches()
    seeds.install(patches)
    unseen.install(patches)
    yield
    patches.undo()


def _left(folder: Path, source: str, is_traced: bool) -> dict[str, Any]:
    """Runs a program; returns its names and values."""
    file, sites = str(folder / "train.py"), list[Site]()
    tree = ast.parse(_HEAD + source, file)

    def register(site: Site) -> int:
        sites.append(site)
        return len(sites) - 1

    space: dict[str, Any] = {"__name__": "train"}
    if is_traced:
        outlined(tree, file, register)
        steps = Outlined(SimpleNamespace(take_for_training=lambda graph: None), lambda: True)  # type: ignore[arg-type]

        def run(number: int, *others: Any) -> Any:
            results = steps.step(sites[number], *others)
            assert results is not None, steps.problem(file, sites[number].line)
            return results

        assert [site.problem for site in sites] == [None] * len(sites) and sites
        space[RUN] = run
    exec(compile(tree, file, "exec"), space)  # what is tested
    return space


def _expect_same(folder: Path, source: str, *names: str) -> None:
    # What nobody reads later is no result of a step.
    source = f"{textwrap.dedent(source)}\ndef last():\n    return {', '.join(names)}\n"
    plain, traced = (_left(folder, source, is_traced) for is_traced in (False, True))
    for name in names:
        mine, expected = traced[name], plain[name]
        assert tf.is_tensor(mine) == tf.is_tensor(expected), name
        if not tf.is_tensor(expected):
            assert type(mine) is type(expected), name
        for one, other in zip(tf.nest.flatten(mine), tf.nest.flatten(expected), strict=True):
            assert tf.is_tensor(one) == tf.is_tensor(other) and (tf.is_tensor(one) or type(one) is type(other)), name
            np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-5, err_msg=name)


def test_numbers_that_become_tensors(tmp_path: Path) -> None:
    """A sum that is an int at first is no int afterwards; a counter stays one; a name that is None, or differs with it."""
    source = """
        m = total = count = 0
        best = before = None
        scale = 1
        for step in range(4):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((x[step * 10 : step * 10 + 10] @ w - y[step * 10 : step * 10 + 10]) ** 2)
            g = tape.gradient(loss, w)
            m = 0.9 * m + 0.1 * g
            total = total + loss
            best = loss if best is None else tf.minimum(best, loss)
            gain = 0 if before is None else before - loss
            before = loss
            count = count + 1
            scale = scale * 0.5
            is_late = count > 2
            w.assign_sub(0.5 * m / (1 - 0.9 ** count))
    """
    _expect_same(tmp_path, source, "m", "total", "best", "gain", "count", "scale", "is_late", "w")


def test_attributes_and_lists_of_numbers_that_become_tensors(tmp_path: Path) -> None:
    source = """
        class State:
            total, m, count, rate = 0, 0.0, 0, 1
        state, moments, counts = State(), [0, 0.0], [0]
        def train(a, b):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((a @ w - b) ** 2)
            g = tape.gradient(loss, w)
            state.total += loss
            state.m = 0.9 * state.m + 0.1 * g
            state.count += 1
            state.rate = state.rate * 0.5
            moments[0] = 0.9 * moments[0] + 0.1 * g
            moments[1] = 0.9 * moments[1] + 0.1 * tf.reduce_mean(g**2)
            counts[0] += 1
            w.assign_sub(0.1 * state.m + 0.1 * moments[0] / (1 - 0.9 ** counts[0]))
        for i in range(4):
            train(x[i * 10 : i * 10 + 10], y[i * 10 : i * 10 + 10])
        total, m, count, rate = state.total, state.m, state.count, state.rate
    """
    _expect_same(tmp_path, source, "total", "m", "count", "rate", "moments", "counts", "w")


def test_methods_of_the_arrays_of_a_batch(tmp_path: Path) -> None:
    source = """
        labels, seen = y[:, 0] > 1.5, 0.0
        for i in range(4):
            batch, label = x[i * 10 : i * 10 + 10], labels[i * 10 : i * 10 + 10]
            with tf.GradientTape() as tape:
                wanted = label.reshape(-1, 1).astype("float32") * 2
                loss = tf.reduce_mean((batch @ w - wanted) ** 2 * batch.sum(axis=1, keepdims=True)) + batch.T.mean()
            w.assign_sub(0.1 * tape.gradient(loss, w))
            seen += np.expand_dims(batch, 0).mean()
    """
    _expect_same(tmp_path, source, "w", "loss", "seen")


_MICRO_BATCHES = """
b, kept, total = tf.Variable([0.0]), [], None
for i in range(8):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x[i * 5 : i * 5 + 5] @ w + b - y[i * 5 : i * 5 + 5]) ** 2)
    g = tape.gradient(loss, [w, b])
    {collected}
"""
_COLLECTED = {
    "added up, and told of": """
    total = g if total is None else [p + q for p, q in zip(total, g)]
    if (i + 1) % 4 == 0:
        for p, v in zip(total, [w, b]): v.assign_sub(0.1 * p)
        total = None
        kept.append(float(loss))
    """,
    "appended": """
    parts.append(g)
    if len(parts) == 4:
        for ps, v in zip(zip(*parts), [w, b]): v.assign_sub(0.1 * tf.add_n(ps))
        parts = []
    """,
    "appended and cleared": """
    parts.append(g)
    if i % 4 == 3:
        for ps, v in zip(zip(*parts), [w, b]): v.assign_sub(0.1 * sum(ps))
        parts.clear()
    """,
    "added to the list": """
    parts += [g]
    if i % 4 == 3:
        for ps, v in zip(zip(*parts), [w, b]): v.assign_sub(0.1 * sum(ps))
        kept.append(loss.numpy())
        parts = []
    """,
    "in places": """
    if i % 4 == 0: total = list(g)
    else:
        for k in range(2): total[k] = total[k] + g[k]
    if i % 4 == 3:
        for p, v in zip(total, [w, b]): v.assign_sub(0.1 * p)
    """,
}


@pytest.mark.parametrize("collected", _COLLECTED)
def test_gradients_collected_over_micro_batches(collected: str, tmp_path: Path) -> None:
    source = "parts = []" + _MICRO_BATCHES.replace(
        "    {collected}\n", textwrap.dedent(_COLLECTED[collected]).replace("\n", "\n    ")
    )
    _expect_same(tmp_path, source, "w", "b", "kept", "loss", "parts")
