# https://github.com/tensorflow/tensorflow/issues/40880
import keras
import numpy as np
import tensorflow as tf


class Model(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            given = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=given)
        gradients = tape.gradient(loss, self.trainable_variables)
        if float(loss.numpy()) > 1.0:
            gradients = [gradient * 0.5 for gradient in gradients]
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        print("in step", tf.executing_eagerly(), float(loss.numpy()))
        for metric in self.metrics:
            metric.update_state(loss) if metric.name == "loss" else metric.update_state(y, given)
        return {m.name: m.result() for m in self.metrics}


keras.utils.set_random_seed(47)
x = np.random.default_rng(0).normal(size=(50, 4)).astype("float32")
inputs = keras.Input((4,))
model = Model(inputs, keras.layers.Dense(1)(keras.layers.Dense(5, "relu")(inputs)))
model.compile("adam", "mse", metrics=["mae"], run_eagerly=True)
print(
    model.fit(x, x.sum(1, keepdims=True), batch_size=20, epochs=2, verbose=0).history,
    "\nupdates",
    int(model.optimizer.iterations),
)
