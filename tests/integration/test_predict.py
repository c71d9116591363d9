"""`fdt predict` on real scripts: it measures, tells, and leaves the script's own objects alone; a run is compared with it."""

import json
from pathlib import Path

import pytest

from tests.helpers import reports
from tests.helpers.warm import fdt

LIMIT_S = 300.0

# Data in arrays, then streamed, then a loop of the script's own.
SCRIPT = """
import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(0)
x = np.random.default_rng(0).random((96, 8), np.float32)
y = x.sum(axis=1, keepdims=True)
model = keras.Sequential([keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
model.compile("adam", "mse")
model.build((None, 8))
before = [w.copy() for w in model.get_weights()]
model.fit(x, y, batch_size=32, epochs=4, verbose=0)
model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(24), epochs=2, verbose=0)
table = tf.Variable(tf.ones([100, 4]))
optimizer = keras.optimizers.SGD(0.1)
optimizer.build([table])


@tf.function
def step(ids):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.gather(table, ids))
    optimizer.apply(tape.gradient(loss, [table]), [table])
    return loss


for _ in range(5):
    step(tf.range(16))
print("untouched", all((a == b).all() for a, b in zip(before, model.get_weights())), float(tf.reduce_sum(table)))
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("predict") / "train.py"
    path.write_text(SCRIPT)
    return path


def test_every_step_of_a_script_is_measured(script: Path) -> None:
    saved = script.parent / "prediction.json"
    network = ["--bandwidth", "1Gbit", "--latency", "100us", "--workers", "2,4"]
    told = fdt("predict", *network, "--json", saved, script, limit_s=LIMIT_S).expect(0)
    # What the script prints goes beside the prediction.
    assert "untouched True 400.0" in told.stderr
    # 4 epochs of 3 batches; 2 epochs of 4; 5 calls.
    for steps in ("12 steps of 32 rows", "8 steps of 24 rows", "5 steps of 16 rows"):
        assert steps in told.stdout, told.describe()
    # Of 16 rows of 4 floats each, and their int32 indices.
    assert "tables' as 20 bytes a row" in told.stdout, told.describe()
    workload = json.loads(saved.read_text())["workload"]
    assert len(workload["step"]) >= 3 and all(timed["seconds"] > 0 for timed in workload["step"])
    assert sum(workload["dense"]) == 4 * (8 * 16 + 16 + 16 + 1)


@pytest.mark.thorough
def test_a_run_is_compared_with_its_prediction(tmp_path: Path) -> None:
    script, saved, report = tmp_path / "train.py", tmp_path / "prediction.json", tmp_path / "report.json"
    script.write_text(SCRIPT.partition("model.fit(tf.data")[0])
    fdt("predict", "--workers", "2", "--json", saved, script, limit_s=LIMIT_S).expect(0)
    options = ("--workers", "2", "--prediction", saved, "--report", report)
    fdt("run", *options, script, limit_s=LIMIT_S).expect(0)
    compared = reports.read(report)["prediction"]
    assert (compared["form"], compared["workers"]) == ("ring", 2)
    assert compared["error"] == pytest.approx(compared["predicted"]["estimate"] / compared["measured"] - 1, abs=1e-3)
    refused = fdt("predict", "--calibrate", report, limit_s=LIMIT_S).expect(2)
    assert "shared one machine" in refused.stderr


def test_nothing_to_predict(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('no training')\n")
    told = fdt("predict", tmp_path / "train.py", limit_s=LIMIT_S).expect(1)
    assert "no training step was found" in told.stderr
