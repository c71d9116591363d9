# https://github.com/keras-team/keras-io/pull/242
import keras
import numpy as np
import tensorflow as tf


class Distiller(keras.Model):
    def __init__(self, student, teacher):
        super().__init__()
        self.student, self.teacher, self.divergence = student, teacher, keras.losses.KLDivergence()

    def train_step(self, data):
        x, y = data
        soft = tf.nn.softmax(self.teacher(x, training=False) / 4.0, axis=1)
        with tf.GradientTape() as tape:
            given = self.student(x, training=True)
            s_loss = self.compute_loss(y=y, y_pred=given)
            d_loss = self.divergence(soft, tf.nn.softmax(given / 4.0, axis=1)) * 16.0
            loss = 0.1 * s_loss + 0.9 * d_loss
        self.optimizer.apply_gradients(
            zip(tape.gradient(loss, self.student.trainable_variables), self.student.trainable_variables)
        )
        return {**self.compute_metrics(x, y, given, None), "s_loss": s_loss, "d_loss": d_loss}


keras.utils.set_random_seed(52)
rng = np.random.default_rng(0)
x, y = rng.random((70, 6, 6, 1)).astype("float32"), rng.integers(0, 3, 70)
teacher = keras.Sequential(
    [
        keras.Input((6, 6, 1)),
        keras.layers.Conv2D(8, 3, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(3),
    ]
)
student = keras.Sequential(
    [
        keras.Input((6, 6, 1)),
        keras.layers.Conv2D(2, 3, strides=2),
        keras.layers.LeakyReLU(negative_slope=0.2),
        keras.layers.Flatten(),
        keras.layers.Dense(3),
    ]
)
crossentropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
teacher.compile("adam", crossentropy)
print(teacher.fit(x, y, epochs=2, verbose=0).history)
distiller = Distiller(student, teacher)
distiller.compile("adam", crossentropy, metrics=["accuracy"])
print(distiller.fit(x, y, epochs=3, verbose=0).history, "\nupdates", int(distiller.optimizer.iterations))
