# https://github.com/tensorflow/tensorflow/issues/35108
import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(45)
drawn = np.random.default_rng(0)


def made(i):
    return (np.float32(i) / 50 + drawn.normal(size=(6, 6, 1))).astype("float32")


def clean(i):
    image = tf.numpy_function(made, [i], tf.float32)
    image.set_shape((6, 6, 1))
    label = tf.py_function(lambda n: float(n.numpy() % 3 == 0), [i], tf.float32)
    return tf.image.resize(image, (8, 8)), tf.ensure_shape(label, ())


data = tf.data.Dataset.range(50).map(clean).batch(16)
model = keras.Sequential(
    [keras.layers.Conv2D(4, 3, activation="relu"), keras.layers.GlobalMaxPooling2D(), keras.layers.Dense(1, "sigmoid")]
)
model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
print(model.fit(data, epochs=3, verbose=0).history, "\nupdates", int(model.optimizer.iterations))
