# https://github.com/tensorflow/similarity/issues/370
import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(2)
rng = np.random.default_rng(0)
x, labels = rng.normal(size=(90, 8)).astype("float32"), rng.integers(0, 4, 90)
model = keras.Sequential([keras.layers.Dense(16, "tanh"), keras.layers.Dense(4), keras.layers.UnitNormalization()])
optimizer = keras.optimizers.Adam(1e-2)


@tf.function
def step(batch, classes):
    with tf.GradientTape() as tape:
        embedded = model(batch, training=True)
        distance = tf.reduce_sum(tf.square(embedded[:, None] - embedded[None]), -1)
        same = classes[:, None] == classes[None]
        positive = same & ~tf.eye(tf.shape(classes)[0], dtype=tf.bool)
        farther = (~same)[:, None, :] & (distance[:, None, :] > distance[:, :, None])
        negative = tf.reduce_min(tf.where(farther, distance[:, None, :], 4.0), -1)
        hinge = tf.nn.relu(distance - negative + 0.5)
        loss = tf.reduce_sum(tf.where(positive, hinge, 0.0)) / tf.maximum(
            1.0, tf.reduce_sum(tf.cast(positive, tf.float32))
        )
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss


for epoch in range(3):
    for batch, classes in tf.data.Dataset.from_tensor_slices((x, labels)).batch(25):
        loss = step(batch, classes)
    print(epoch, float(loss))
print("updates", int(optimizer.iterations))
