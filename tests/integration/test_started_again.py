"""Scripts that keep checkpoints themselves are killed in the middle and started again.

They print what they print in plain python that is treated alike.
"""

import signal
from pathlib import Path

import pytest

from tests.helpers.processes import Finished
from tests.helpers.warm import run_fdt, run_python

LIMIT_S = 240.0

NET = """\
import os
import signal
import sys

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(1)
x = np.random.rand(96, 4).astype("float32")
y = np.random.randint(0, 2, (96, 1)).astype("float32")

def net():
    layers = [keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.1), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile("adam", keras.losses.BinaryCrossentropy(from_logits=True), metrics=["mae"])
    return model

def shown(history):
    print("losses", *(f"{value:.6f}" for name in ("loss", "mae") for value in history.history[name]))

class Dies(keras.callbacks.Callback):
    # In the middle of the fourth epoch, the first time.
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self.epoch, batch) == (3, 5) and sys.argv[1] == "die":
            os.kill(os.getpid(), signal.SIGKILL)
"""

SCRIPTS = {
    "BackupAndRestore": """
model = net()
backup = keras.callbacks.BackupAndRestore("backup")
shown(model.fit(x, y, epochs=6, batch_size=8, verbose=0, callbacks=[backup, Dies()]))
""",
    "BackupAndRestore by steps": """
model = net()
backup = keras.callbacks.BackupAndRestore("backup", save_freq=3)
shown(model.fit(x, y, epochs=6, batch_size=8, verbose=0, callbacks=[backup, Dies()]))
""",
    "ModelCheckpoint": """
model, epoch = net(), 0
if os.path.exists("newest.keras"):
    model = keras.models.load_model("newest.keras")
    epoch = int(model.optimizer.iterations) // 12
    print("loaded at epoch", epoch)
callbacks = [keras.callbacks.ModelCheckpoint("newest.keras"), Dies()]
shown(model.fit(x, y, epochs=6, initial_epoch=epoch, batch_size=8, verbose=0, callbacks=callbacks))
""",
    "CheckpointManager": """
model, optimizer, number = net(), keras.optimizers.Adam(0.01), tf.Variable(0, dtype=tf.int64)
optimizer.build(model.trainable_variables)
checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, number=number)
manager = tf.train.CheckpointManager(checkpoint, "checkpoints", max_to_keep=2)
checkpoint.restore(manager.latest_checkpoint)
print("begins at step", int(number))

@tf.function
def step(a, b):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(a, training=False) - b))
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss

while int(number) < 30:
    at = 8 * (int(number) % 12)
    loss = step(x[at : at + 8], y[at : at + 8])
    number.assign_add(1)
    if int(number) % 5 == 0:
        manager.save()
        print("loss", f"{float(loss):.6f}", flush=True)
    if int(number) == 18 and sys.argv[1] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
print("steps", int(optimizer.iterations), int(number))
""",
}


def treated(directory: Path, text: str, *, plain: bool) -> Finished:
    """Runs a script, which is killed, and runs it again."""
    directory.mkdir()
    script = directory / "train.py"
    script.write_text(NET + text)

    def run(*arguments: str) -> Finished:
        if plain:
            return run_python(script, *arguments, limit_s=LIMIT_S, cwd=directory)
        return run_fdt(script, *arguments, limit_s=LIMIT_S, cwd=directory)

    run("die").expect(-signal.SIGKILL)
    return run("live").expect(0)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", SCRIPTS)
def test_it_goes_on_where_plain_python_does(tmp_path: Path, kind: str) -> None:
    expected = treated(tmp_path / "plain", SCRIPTS[kind], plain=True).stdout.split()
    ours = treated(tmp_path / "ours", SCRIPTS[kind], plain=False)
    assert "fdt: sync training on 2 workers" in ours.stderr, ours.describe()
    found = ours.stdout.split()
    assert len(found) == len(expected), (found, expected)
    for word, other in zip(found, expected, strict=True):
        assert word == other or float(word) == pytest.approx(float(other), rel=1e-5), (found, expected)
