"""Small scripts that go wrong, as plain TensorFlow; the line where they do ends with `# <- here`."""

from pathlib import Path

HERE = "# <- here"

NET = """\
import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(1)
x = np.random.rand(32, 4).astype("float32")
y = np.random.randint(0, 2, (32, 1)).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, activation="sigmoid")])
print("built", flush=True)
"""

FIT = 'model.fit(x, y, epochs=2, batch_size=8, verbose=2)  # <- here\nprint("trained", flush=True)\n'

TRAINS = NET + 'model.compile("sgd", "binary_crossentropy", metrics=["accuracy"])\n' + FIT


def write(directory: Path, text: str, name: str = "train.py") -> Path:
    """Writes a script into a directory."""
    path = directory / name
    path.write_text(text)
    return path


def marked_line(text: str) -> int:
    """Returns the number of the line that ends with the mark."""
    return next(number for number, line in enumerate(text.splitlines(), 1) if line.rstrip().endswith(HERE))


# Name -> script, what the message must name, what it must advise.
UNSUPPORTED: dict[str, tuple[str, str, str]] = {
    "eager tape loop": (
        NET
        + """
optimizer = keras.optimizers.SGD(0.1)
for start in range(0, 32, 8):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x[start : start + 8]) - y[start : start + 8]))
        if loss > 1e6:  # a branch of Python's on what the step computes
            loss = loss / 2.0
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))  # <- here
    print("trained", flush=True)
""",
        r"cannot be outlined: line \d+: .*`tf.Tensor` as a Python `bool`",
        r"model\.fit|tf\.function|train_step",
    ),
    "variables changed by hand": (
        NET
        + """
w = tf.Variable(tf.zeros([4, 1]))
for start in range(0, 32, 8):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(x[start : start + 8] @ w - y[start : start + 8]))
        scale = float(loss)
        loss = loss * min(scale, 1.0)
    w.assign_sub(0.1 * tape.gradient(loss, w))  # <- here
    print("trained", flush=True)
""",
        r"changed by its gradients.*`scale = float\(loss\)` must run in Python",
        r"tf\.function",
    ),
    "elements taken in a loop of the graph": (
        NET
        + """
optimizer = keras.optimizers.SGD(0.01)
batches = iter(tf.data.Dataset.from_tensor_slices((x, y)).batch(8).repeat())

def update(count):
    a, b = next(batches)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(a) - b))
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return count + 1

@tf.function
def steps():
    return tf.while_loop(lambda count: count < 3, update, [tf.constant(0)])

steps()  # <- here
print("trained", flush=True)
""",
        r"data set|iterator",
        r"one (by|batch|element)|argument",
    ),
    "run_eagerly": (
        NET
        + 'tf.config.run_functions_eagerly(True)\nmodel.compile("sgd", "mse")\n'
        + FIT
        # All these scripts run in one process under plain python.
        + "tf.config.run_functions_eagerly(False)\n",
        r"run_functions_eagerly",
        r"Turn it off",
    ),
    "run_eagerly that prints": (
        NET
        + 'def loss(y_true, y_pred):\n    print("loss")\n    return tf.reduce_mean((y_true - y_pred) ** 2)\n'
        + 'model.compile("sgd", loss, run_eagerly=True)\n'
        + FIT,
        r"prints 'loss'",
        r"run_eagerly=False",
    ),
    "run_eagerly that looks": (
        NET
        + """
def loss(y_true, y_pred):
    found = tf.reduce_mean((y_true - y_pred) ** 2)
    return found if float(found.numpy()) < 1e6 else found / 2.0  # <- here


model.compile("sgd", loss, run_eagerly=True)
model.fit(x, y, epochs=2, batch_size=8, verbose=2)
print("trained", flush=True)
""",
        r"looks at values",
        r"run_eagerly=False",
    ),
    "python in the loss": (
        NET
        + """
def loss(y_true, y_pred):
    weights = tf.numpy_function(lambda a: np.ones_like(a), [y_true], tf.float32)
    return tf.reduce_mean(tf.square(y_true - y_pred) * tf.reshape(weights, tf.shape(y_true)), axis=-1)

model.compile("sgd", loss)
"""
        + FIT,
        r"PyFunc|py_function|numpy_function",
        r"tensorflow op|TensorFlow op|tf\.|[Tt]ake it out|keras\.ops",
    ),
    "a file in the loss": (
        NET
        + """
def loss(y_true, y_pred):
    size = tf.cast(tf.strings.length(tf.io.read_file("/etc/hostname")), "float32")
    return tf.reduce_mean(tf.square(y_true - y_pred), axis=-1) * size

model.compile("sgd", loss)
"""
        + FIT,
        r"ReadFile|read_file",
        r"[Tt]ake it out|before",
    ),
    "old variables of TensorFlow 1": (
        """\
import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_eager_execution()
x = tf.placeholder(tf.float32, [None, 4])
w = tf.get_variable("w", [4, 1], use_resource=False)
train = tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.square(tf.matmul(x, w) - 1.0)))
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    print("built", flush=True)
    session.run(train, {x: np.ones((8, 4))})
    print("trained", flush=True)
""",
        r"'w' is of TensorFlow 1's old kind",
        r"Leave use_resource out",
    ),
    "Keras in a graph of TensorFlow 1": (
        """\
import numpy as np
import tensorflow as tf
import tf_keras

tf.compat.v1.disable_eager_execution()
model = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(4,))])
model.compile("sgd", "mse")
print("built", flush=True)
model.fit(np.ones((8, 4)), np.ones((8, 1)), verbose=0)
print("trained", flush=True)
""",
        r"callable that trains",
        r"without disable_eager_execution",
    ),
    "optimizer of TensorFlow 1 without a graph": (
        """\
import numpy as np
import tensorflow as tf

w = tf.Variable(tf.ones([4, 1]))
optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)
print("built", flush=True)
optimizer.minimize(lambda: tf.reduce_mean(tf.square(tf.ones([8, 4]) @ w - 3.0)))
print("trained", flush=True)
""",
        r"GradientDescentOptimizer outside a graph of TensorFlow 1",
        r"tf\.keras\.optimizers",
    ),
}
