# https://github.com/tensorflow/tensorflow/issues/54271
import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(37)
rng = np.random.default_rng(0)
labels = rng.integers(0, 3, 80)
parts = [
    tf.data.Dataset.from_tensor_slices(
        (rng.random((80, 4, 4, 1)).astype("float32") + labels[:, None, None, None], labels)
    )
    for _ in range(3)
]
zipped = tf.data.Dataset.zip(tuple(parts)).map(
    lambda a, b, c: ({"one": a[0], "two": b[0], "three": c[0]}, tf.one_hot(a[1], 3))
)
data = zipped.filter(lambda x, y: tf.reduce_sum(x["one"]) > 6.0).shuffle(40, seed=4).batch(20).repeat(2).take(6)
inputs = {name: keras.Input((4, 4, 1), name=name) for name in ("one", "two", "three")}
shared = keras.Sequential([keras.layers.Conv2D(4, 3, activation="relu"), keras.layers.Flatten()])
joined = keras.layers.Average()([shared(each) for each in inputs.values()])
model = keras.Model(inputs, keras.layers.Dense(3, "softmax")(joined))
model.compile("adam", "categorical_crossentropy", metrics=["accuracy"])
print(model.fit(data, epochs=2, verbose=0).history, "\nupdates", int(model.optimizer.iterations))
