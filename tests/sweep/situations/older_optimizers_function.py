# https://github.com/keras-team/keras-core/pull/80
import keras
import numpy as np
import tensorflow as tf

x = np.random.default_rng(0).normal(size=(70, 5)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, x[:, :2] * x[:, 2:4])).batch(32)
o = keras.optimizers
for make in (
    lambda: o.SGD(0.05, momentum=0.9, nesterov=True),
    lambda: o.RMSprop(0.01, momentum=0.5, centered=True),
    lambda: o.Adam(0.02, amsgrad=True, clipnorm=0.5),
    lambda: o.Adadelta(1.0),
    lambda: o.Adagrad(0.1),
    lambda: o.Adamax(0.02, weight_decay=0.01),
    lambda: o.Nadam(0.02),
    lambda: o.Ftrl(0.1, l2_regularization_strength=0.01),
):
    keras.utils.set_random_seed(30)
    model, optimizer = keras.Sequential([keras.layers.Dense(6, "tanh"), keras.layers.Dense(2)]), make()

    @tf.function
    def step(features, labels):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(features, training=True) - labels))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        return loss

    losses = [float(step(*batch)) for _ in range(2) for batch in data]
    print(optimizer.name, losses, "\nupdates", int(optimizer.iterations))
