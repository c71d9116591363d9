"""`fdt check` and `fdt verify`: nothing to complain of in a plain script, and each planted fault found and named."""

from pathlib import Path

import numpy as np
import pytest

from tests.helpers import warm
from tests.helpers.pool import Pool
from tests.helpers.processes import Finished
from tests.helpers.thorough import some_of

LIMIT_S = 150.0

DATA = """\
import keras
import numpy as np
import tensorflow as tf

open("written.txt", "w").write("by a script that is only looked at")
keras.utils.set_random_seed(1)
x = np.random.default_rng(0).random((200, 6), np.float32)
y = x.sum(1, keepdims=True)
"""
NET = "model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, 'relu'), keras.layers.Dense(1)])\n"
FIT = "model.fit(x, y, batch_size=20, epochs=2, verbose=0)\nprint('after', flush=True)\n"
PLAIN = DATA + NET + "model.compile('sgd', 'mse')\n" + FIT
LOOP = (
    DATA
    + NET
    + """
optimizer = keras.optimizers.Adam()

@tf.function
def step(a, b):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(a) - b))
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss

for start in range(0, 200, 20):
    step(x[start : start + 20], y[start : start + 20])
print('after', flush=True)
"""
)
LOSS_WITH_STATE = (
    DATA
    + """
class Balanced(keras.losses.Loss):
    def __init__(self):
        super().__init__()
        self.mean = keras.Variable(1.0, trainable=False, name="running_mean")

    def call(self, y_true, y_pred):
        error = keras.ops.square(y_true - y_pred)
        self.mean.assign(0.9 * self.mean + 0.1 * keras.ops.mean(error))
        return error / self.mean

"""
    + NET
    + "model.compile('sgd', Balanced())\n"
    + FIT
)
NORMALISED = (
    DATA
    + NET.replace(
        "keras.layers.Dense(1)",
        "keras.layers.BatchNormalization(name='middle'), keras.layers.Dropout(0.5), keras.layers.Dense(1)",
    )
    + "model.compile('sgd', 'mse')\n"
    + FIT
)
CONTRASTIVE = (
    DATA
    + """
def pairs(y_true, y_pred):
    scores = y_pred @ keras.ops.transpose(y_pred)
    return keras.losses.sparse_categorical_crossentropy(tf.range(tf.shape(scores)[0]), scores, from_logits=True)

"""
    + NET
    + "model.compile('sgd', pairs)\n"
    + FIT
)
# A row is made of its neighbour, and a layer comes after that.
NEIGHBOURS = (
    DATA
    + """
class Neighbour(keras.layers.Layer):
    def call(self, x):
        return x + 0.5 * keras.ops.roll(x, 1, axis=0)

"""
    + NET.replace("keras.layers.Dense(1)", "Neighbour(), keras.layers.Dense(1)")
    + "model.compile('sgd', 'mse')\n"
    + FIT
)
STREAMED_NEIGHBOURS = NEIGHBOURS.replace(
    "x, y, batch_size=20, epochs=2", "((x[:20], y[:20]) for _ in range(8)), epochs=1"
)
STATEFUL = (
    DATA
    + """
inputs = keras.Input(batch_shape=(20, 6, 1))
outputs = keras.layers.Dense(1)(keras.layers.SimpleRNN(3, stateful=True, name="memory")(inputs))
model = keras.Model(inputs, outputs)
model.compile("sgd", "mse")
model.fit(x[:, :, None], y, batch_size=20, epochs=2, verbose=0, shuffle=False)
"""
)
# Batches of one size, which a step knows while it is traced: the means of single losses then count rows, not steps.
TWO_LOSSES = (
    DATA
    + """
inputs = keras.Input((6,))
model = keras.Model(inputs, {name: keras.layers.Dense(1, name=name)(inputs) for name in "ab"})
model.compile("sgd", {"a": "mse", "b": "mae"})
data = tf.data.Dataset.from_tensor_slices((x, {"a": y, "b": y})).batch(60, drop_remainder=True)
model.fit(data, epochs=3, verbose=0)
"""
)
DRAWING = (
    DATA
    + """
class Noisy(keras.Model):
    def __init__(self):
        super().__init__()
        self.out = keras.layers.Dense(1)

    def call(self, x):
        return self.out(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            noise = tf.random.normal(tf.shape(x), dtype=x.dtype)
            loss = tf.reduce_mean((self(x + noise) - tf.cast(y, self.compute_dtype)) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"l": loss}

model = Noisy()
model(x[:1])
model.compile(keras.optimizers.SGD(0.1))
model.optimizer.build(model.trainable_variables)
model.fit(x, y, batch_size=20, epochs=1, verbose=0, shuffle=False)
"""
)
# The pool's step is the first that is traced: its gradients are wrong by a thousandth.
WRONG = DRAWING.replace(
    "        self.optimizer.apply(",
    "        wrong, self.traced = getattr(self, 'traced', 1e-3), 0.0\n"
    "        gradients = [gradient * (1 + wrong) for gradient in gradients]\n"
    "        self.optimizer.apply(",
)
EAGER = LOOP.replace("@tf.function\n", "")


def fdt(command: str, folder: Path, text: str, *options: str) -> Finished:
    script = folder / "train.py"
    script.write_text(text)
    finished = warm.fdt(command, "--workers", "2", *options, script, limit_s=LIMIT_S, cwd=folder)
    assert not (folder / "written.txt").exists(), finished.describe()
    return finished


SAVING = (
    DATA
    + NET
    + """
model.compile("sgd", "mse")
keeps = keras.callbacks.ModelCheckpoint("best.keras", monitor="val_loss", save_best_only=True)
model.fit(x, y, epochs=3, verbose=0, validation_split=0.2, callbacks=[keeps, keras.callbacks.CSVLogger("log.csv")])
each = keras.callbacks.ModelCheckpoint("{epoch}.weights.h5", save_weights_only=True)
model.fit(x, y, epochs=3, verbose=0, callbacks=[each])
model.load_weights("2.weights.h5")
best = keras.models.load_model("best.keras")
best.save("final.keras")
print("rows", len(open("log.csv").readlines()))
"""
)


SCRIPTS = {
    "fit": PLAIN,
    "loop": LOOP,
    "eager loop": EAGER,
    "loss with state": LOSS_WITH_STATE,
    "pairs of rows": CONTRASTIVE,
    "normalisation and dropout": NORMALISED,
    "neighbours": NEIGHBOURS,
    "neighbours streamed": STREAMED_NEIGHBOURS,
    "stateful": STATEFUL,
    "two losses": TWO_LOSSES,
    "drawing": DRAWING,
}


def test_a_checked_script_reads_its_own_files_back_and_leaves_none(tmp_path: Path) -> None:
    (tmp_path / "final.keras").write_text("trained")
    finished = fdt("check", tmp_path, SAVING).expect(0)
    assert "rows 4" in finished.stderr and "all of it would be distributed" in finished.stdout
    assert (tmp_path / "final.keras").read_text() == "trained"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["final.keras", "train.py"]


# Others differ in what is divided, which tests/fidelity and tests/division look at.
@pytest.mark.parametrize(
    "name",
    some_of(SCRIPTS, ["fit", "loop", "eager loop", "normalisation and dropout"]),
)
def test_plain_script_passes(name: str, pool: Pool, tmp_path: Path) -> None:
    text = SCRIPTS[name]
    checked = fdt("check", tmp_path, text).expect(0)
    assert "train.py, line" in checked.stdout
    assert "The script trains in 1 place; all of it would be distributed." in checked.stdout
    verified = fdt("verify", tmp_path, text, "--steps", "6", *pool.options).expect(0)
    assert "6 steps compared" in verified.stderr
    assert "within the tolerance" in verified.stderr
    assert "after" not in verified.stdout


OF_FILES = """\
import glob, keras
import tensorflow as tf

def row(path):
    values = tf.reshape(tf.io.decode_raw(tf.io.read_file(path), tf.float32), [6])
    return values, tf.reduce_sum(values, keepdims=True)

keras.utils.set_random_seed(1)
data = tf.data.Dataset.from_tensor_slices(sorted(glob.glob("rows/*"))).map(row).batch(4)
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(data, verbose=0)
"""


def test_a_script_whose_files_workers_read_is_verified(tmp_path: Path) -> None:
    """Here as well as there each batch is needed: this machine reads them."""
    (tmp_path / "rows").mkdir()
    for number, values in enumerate(np.random.default_rng(0).random((10, 6), np.float32)):
        (tmp_path / "rows" / str(number)).write_bytes(values.tobytes())
    verified = fdt("verify", tmp_path, OF_FILES).expect(0)
    assert "3 steps compared" in verified.stderr and "within the tolerance" in verified.stderr


def test_wrong_gradients_are_no_rounding(pool: Pool, tmp_path: Path) -> None:
    assert WRONG != DRAWING
    said = fdt("verify", tmp_path, WRONG, "--steps", "2", *pool.options).expect(1).stderr
    assert "largest difference 1.0e-03 (noisy/dense/" in said
    assert "in double precision: largest difference 1.0e-03 (noisy/dense/" in said
    assert "rounding does not make such a difference" in said


@pytest.mark.parametrize("command", ["check", "verify"])
def test_planted_eager_loop_is_refused_and_named(command: str, tmp_path: Path) -> None:
    # A branch of Python's on what the step computes.
    planted = EAGER.replace("model(a) - b))\n", "model(a) - b))\n        loss = loss if loss > 0 else -loss\n")
    assert planted != EAGER
    finished = fdt(command, tmp_path, planted)
    assert finished.status not in (0, None), finished.describe()
    line = next(n for n, text in enumerate(planted.splitlines(), 1) if "apply_gradients" in text)
    assert f"train.py, line {line}" in finished.output
    assert f"cannot be outlined: line {line - 1}: " in finished.output


def test_weights_of_keras_that_are_changed_by_hand_are_noticed(tmp_path: Path) -> None:
    # By Keras's own variables, out of sight of the outline.
    text = (
        DATA
        + NET
        + """
import tensorflow as tf
rules = {"sgd": lambda weight, gradient: weight.assign_sub(0.1 * gradient)}
with tf.GradientTape() as tape:
    loss = tf.reduce_mean((model(x) - y) ** 2)
for weight, gradient in zip(model.trainable_weights, tape.gradient(loss, model.trainable_weights)):
    rules["sgd"](weight, gradient)
"""
    )
    finished = fdt("check", tmp_path, text)
    assert finished.status not in (0, None), finished.describe()
    line = next(n for n, each in enumerate(text.splitlines(), 1) if "rules = " in each)
    assert f"train.py, line {line}: a variable (" in finished.output


def test_a_step_that_cannot_be_outlined_runs_here_where_that_is_asked_for(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(EAGER.replace("model(a) - b))\n", "model(a) - b))\n        loss = loss if loss > 0 else -loss\n"))
    finished = warm.fdt("run", "--workers", "2", "--else", "local", script, limit_s=LIMIT_S, cwd=tmp_path).expect(0)
    assert "after" in finished.stdout
    assert finished.stderr.count("is made on this machine") == 1


def test_how_data_travel_is_told(tmp_path: Path) -> None:
    rows = "tf.data.Dataset.from_tensor_slices((x, y))"
    text = PLAIN.replace(FIT, "") + "scale = lambda a, b: (a / 2, b)\n"
    text += "noisy = lambda a, b: (a + tf.random.normal([], stddev=1e-3), b)\n"
    text += f"model.fit({rows}.map(scale).batch(20), epochs=2)\nmodel.fit({rows}.batch(20).map(noisy), epochs=2)\n"
    said = fdt("check", tmp_path, text).expect(0).stdout
    assert said.index("arrays of 0.0 MB, sent once") < said.index("streamed, batch by batch")


# What scripts do with what training gives them: they format figures, compare them, and go on computing with tensors.
FIGURES = (
    DATA
    + NET
    + """
model.compile("sgd", "mse")
print(f"{float(model.train_on_batch(x[:20], y[:20])):.3f}")
history = model.fit(x, y, batch_size=20, epochs=3, verbose=0).history["loss"]
assert history[-1] < history[0] and int(1000 / history[0]) >= 0

critic = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
critic.compile("sgd", "mse")
critic.train_on_batch(x[:20], y[:20])
critic.trainable = False
both = keras.Sequential([keras.Input((6,)), keras.layers.Dense(6), critic])
both.compile("sgd", "mse")
for _ in range(2):
    critic.train_on_batch(x[:20], y[:20])
    both.train_on_batch(x[:20], y[:20])

weights, bias = tf.Variable(tf.zeros((6, 1))), tf.Variable(tf.zeros(1))
optimizer, total, count = keras.optimizers.SGD(0.1), None, 0
while count < 8:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x[:20] @ weights + bias - y[:20]) ** 2)
    gradients = tape.gradient(loss, [weights, bias])
    total = gradients if total is None else [a + b for a, b in zip(total, gradients)]
    count += 1
    if count % 4 == 0:
        optimizer.apply_gradients(zip(total, [weights, bias]))
        total = None
    assert 0 < float(loss) < 100
print("untouched", float(tf.reduce_sum(tf.abs(weights))))

optimizer = keras.optimizers.SGD(0.1)
while optimizer.iterations < 5:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x[:20] @ weights + bias - y[:20]) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, [weights, bias]), [weights, bias]))
print("counted", int(optimizer.iterations))
"""
)


def test_a_checked_script_goes_on_with_what_its_steps_give_it(tmp_path: Path) -> None:
    finished = fdt("check", tmp_path, FIGURES).expect(0)
    assert "The script trains in 7 places; all of it would be distributed." in finished.stdout
    assert "untouched 0.0" in finished.stderr and "counted 5" in finished.stderr


def test_stateful_layer_is_refused_where_workers_are_asynchronous(tmp_path: Path) -> None:
    checked = fdt("check", tmp_path, STATEFUL, "--mode", "async").expect(1)
    assert "'memory' is stateful" in checked.stdout
    assert "--workers 1" in checked.stdout


def test_no_training_is_no_success(tmp_path: Path) -> None:
    assert "No training step was found" in fdt("check", tmp_path, DATA).expect(1).stdout
    assert "nothing was verified" in fdt("verify", tmp_path, DATA).expect(1).stderr
