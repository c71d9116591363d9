# https://github.com/keras-team/keras/issues/474
import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(43)
rng = np.random.default_rng(0)
x, y = rng.random((50, 6, 6, 2)).astype("float32"), rng.integers(0, 3, 50)
model = keras.Sequential(
    [
        keras.Input((6, 6, 2)),
        keras.layers.Conv2D(
            4, 3, kernel_constraint=keras.constraints.UnitNorm(axis=[0, 1, 2]), kernel_regularizer="l2"
        ),
        keras.layers.Flatten(),
        keras.layers.Dense(
            6,
            "relu",
            kernel_constraint=keras.constraints.MaxNorm(0.5),
            kernel_regularizer=keras.regularizers.OrthogonalRegularizer(0.05),
        ),
        keras.layers.Dense(
            3, kernel_constraint=keras.constraints.MinMaxNorm(0.2, 0.8, rate=0.9), bias_constraint="non_neg"
        ),
    ]
)
optimizer, loss_fn = keras.optimizers.SGD(0.2), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
for epoch in range(3):
    for start in range(0, 50, 20):
        with tf.GradientTape() as tape:
            loss = loss_fn(y[start : start + 20], model(x[start : start + 20], training=True)) + sum(model.losses)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_weights), model.trainable_weights))
    print(epoch, float(loss), [float(np.linalg.norm(w)) for w in model.get_weights()])
print("updates", int(optimizer.iterations))
