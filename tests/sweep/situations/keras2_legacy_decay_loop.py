# https://github.com/DataCanvasIO/HyperTS/issues/71
import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"
import numpy as np
import tensorflow as tf

tf.keras.utils.set_random_seed(57)
x = np.random.default_rng(0).normal(size=(70, 8, 2)).astype("float32")
y = x[:, -1].sum(1, keepdims=True)
model = tf.keras.Sequential(
    [
        tf.keras.layers.Conv1D(6, 3, padding="causal", dilation_rate=2, activation="relu"),
        tf.keras.layers.GRU(5),
        tf.keras.layers.Dense(1),
    ]
)
optimizer = tf.keras.optimizers.legacy.Adam(0.02, decay=0.1, clipnorm=1.0)
mean = tf.keras.metrics.MeanAbsoluteError()
for epoch in range(3):
    for features, labels in tf.data.Dataset.from_tensor_slices((x, y)).batch(32):
        with tf.GradientTape() as tape:
            given = model(features, training=True)
            loss = tf.reduce_mean(tf.keras.losses.huber(labels, given))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        mean.update_state(labels, given)
    print(epoch, float(loss), float(mean.result()), float(optimizer._decayed_lr(tf.float32)))
    mean.reset_state()
print("updates", int(optimizer.iterations))
