"""`fdt compare` on real scripts, and the two options of `fdt run` that it stands on."""

import itertools
import json
import re
from pathlib import Path

import pytest

from tests.helpers.pool import Pool
from tests.helpers.processes import PYTHON, Finished, run
from tests.helpers.thorough import some_of
from tests.helpers.warm import run_fdt, run_module

LIMIT_S = 400.0
FDT = [PYTHON, "-m", "fdt"]

FIT = """
import keras
import numpy as np

keras.utils.set_random_seed(0)
x = np.random.default_rng(0).random((96, 8), np.float32)
y = x.sum(axis=1, keepdims=True)
model = keras.Sequential([keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit(x, y, batch_size=8, epochs=50, verbose=0)
print("the end")
"""
EXECUTED_TOGETHER = FIT.replace('"mse")', '"mse", steps_per_execution=4)')
LOOP = """
import keras
import tensorflow as tf

w = tf.Variable(tf.ones([8, 1]))
optimizer = keras.optimizers.SGD(0.1)
optimizer.build([w])


@tf.function
def forward(x):
    return tf.reduce_mean(tf.square(x @ w))


@tf.function
def step(x):
    with tf.GradientTape() as tape:
        loss = forward(x)
    optimizer.apply(tape.gradient(loss, [w]), [w])
    return loss


for _ in range(600):
    step(tf.ones([8, 8]))
    forward(tf.ones([8, 8]))
print("the end")
"""
SESSION = """
import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_eager_execution()
x = tf.placeholder(tf.float32, [None, 4])
w = tf.get_variable("w", [4, 1])
loss = tf.reduce_mean(tf.square(tf.matmul(x, w) - 1.0))
train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for _ in range(600):
        session.run(train, {x: np.ones((8, 4))})
        session.run(loss, {x: np.ones((8, 4))})
print("the end")
"""
SCRIPTS = {"fit": FIT, "steps executed together": EXECUTED_TOGETHER, "loop": LOOP, "session": SESSION}


def written(directory: Path, text: str) -> Path:
    script = directory / "train.py"
    script.write_text(text)
    return script


@pytest.mark.thorough
def test_all_forms_of_a_script_are_compared(tmp_path: Path) -> None:
    script, out = written(tmp_path, FIT), tmp_path / "out"
    options = ["--workers", "1,2", "--steps", "40", "--out", str(out)]
    told = run([*FDT, "compare", *options, str(script)], limit_s=LIMIT_S, cwd=tmp_path).expect(0)
    content = json.loads((out / "comparison.json").read_text())
    names = [run["name"] for run in content["runs"]]
    assert names == [
        "plain python",
        "ring, 1 worker",
        "ring, 2 workers",
        "one server, 1 worker",
        "one server, 2 workers",
        "sharded servers, 2 workers",
    ]
    assert all(run["error"] is None and run["steps"] == 40 and run["step"] > 0 for run in content["runs"])
    predicted = [run["predicted"] is not None for run in content["runs"]]
    assert predicted == [False, True, True, True, True, False]
    page = (out / "comparison.html").read_text()
    for name in names:
        assert name in told.stdout and name in page
    for name in ("speedup", "steps", "bytes"):
        assert (out / f"{name}.png").exists()
    # What the script printed is not what was asked for, and it was ended before it came to that.
    assert "the end" not in told.output


@pytest.mark.parametrize("name", SCRIPTS)
def test_steps_in_place_are_counted_in_every_form(tmp_path: Path, name: str) -> None:
    script, result = written(tmp_path, SCRIPTS[name]), tmp_path / "result.json"
    counted = in_place(script, result, steps=25).expect(0)
    assert "the end" not in counted.stdout
    found = json.loads(result.read_text())
    # Four at a time: it ends at the first multiple.
    assert found["made"] == (28 if name == "steps executed together" else 25)
    assert found["counted"] == found["made"] - 5
    assert found["seconds"] > 0


def test_a_script_with_fewer_steps_ends_by_itself(tmp_path: Path) -> None:
    script, result = written(tmp_path, LOOP.replace("600", "3")), tmp_path / "result.json"
    assert "the end" in in_place(script, result, steps=25).expect(0).stdout
    assert json.loads(result.read_text())["made"] == 3
    out = tmp_path / "out"
    told = run([*FDT, "compare", "--out", str(out), str(script)], limit_s=LIMIT_S, cwd=tmp_path).expect(1)
    assert "the script made 3 training steps" in told.stdout
    assert (out / "comparison.html").exists()


def in_place(script: Path, result: Path, steps: int) -> Finished:
    arguments = (result, "100", str(steps), "5", script)
    return run_module("fdt.cli.timed_run", *arguments, limit_s=LIMIT_S, cwd=script.parent)


@pytest.mark.parametrize(
    ("mode", "name"),
    some_of(
        itertools.product(["sync", "async"], ["fit", "loop", "session"]),
        [("sync", "fit"), ("async", "loop"), ("sync", "session")],
    ),
)
def test_a_run_is_stopped_and_its_warm_up_left_out(pool: Pool, tmp_path: Path, name: str, mode: str) -> None:
    script, report = written(tmp_path, SCRIPTS[name]), tmp_path / "report.json"
    options = ["--stop-after", "25", "--warm-up", "5", "--report", str(report), *pool.options]
    finished = run_fdt(script, mode=mode, options=options, limit_s=LIMIT_S, cwd=tmp_path).expect(0)
    assert "the end" not in finished.stdout
    (fit,) = json.loads(report.read_text())["fits"]
    assert fit["steps"] == 20
    made = sum(rank["steps"] for rank in fit["ranks"])
    assert made == (40 if mode == "sync" else 20)
    assert re.fullmatch(r"\d+\.\d+", str(fit["seconds"])) and fit["seconds"] > 0
