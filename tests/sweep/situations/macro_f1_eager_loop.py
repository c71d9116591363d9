# https://github.com/netrack/keras-metrics/issues/18
import keras
import numpy as np
import tensorflow as tf


class MacroF1(keras.metrics.Metric):
    def __init__(self, classes):
        super().__init__(name="macro_f1")
        self.counts = self.add_weight(shape=(classes, classes), initializer="zeros", name="counts")

    def update_state(self, true, given, sample_weight=None):
        self.counts.assign_add(tf.math.confusion_matrix(true, tf.argmax(given, 1), 3, dtype=tf.float32))

    def result(self):
        hits = tf.linalg.diag_part(self.counts)
        return tf.reduce_mean(2 * hits / (tf.reduce_sum(self.counts, 0) + tf.reduce_sum(self.counts, 1) + 1e-7))


keras.utils.set_random_seed(21)
rng = np.random.default_rng(0)
x, y = rng.normal(size=(70, 4)).astype("float32"), rng.integers(0, 3, 70)
model, optimizer = keras.Sequential([keras.layers.Dense(8, "relu"), keras.layers.Dense(3)]), keras.optimizers.Adam(0.01)
metric, loss_fn = MacroF1(3), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
for epoch in range(3):
    for features, labels in tf.data.Dataset.from_tensor_slices((x, y)).batch(32):
        with tf.GradientTape() as tape:
            logits = model(features, training=True)
            loss = loss_fn(labels, logits)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_weights), model.trainable_weights))
        metric.update_state(labels, logits)
    print(epoch, float(metric.result()), float(loss))
    metric.reset_state()
print("updates", int(optimizer.iterations))
