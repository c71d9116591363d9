# https://github.com/keras-team/keras/issues/20894
import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(35)
keras.mixed_precision.set_global_policy("mixed_float16")
x = np.random.default_rng(0).normal(size=(70, 4)).astype("float32")
y = (x.sum(1) > 0).astype("int32")
model = keras.Sequential(
    [
        keras.Input((4,)),
        keras.layers.Dense(16, "relu"),
        keras.layers.Dense(2),
        keras.layers.Activation("softmax", dtype="float32"),
    ]
)
optimizer = keras.optimizers.LossScaleOptimizer(
    keras.optimizers.Adam(0.01), initial_scale=2.0**18, dynamic_growth_steps=3
)
loss_object = keras.losses.SparseCategoricalCrossentropy()


@tf.function
def train_step(features, labels):
    with tf.GradientTape() as tape:
        loss = loss_object(labels, model(features, training=True))
        scaled = optimizer.scale_loss(loss)
    optimizer.apply_gradients(zip(tape.gradient(scaled, model.trainable_variables), model.trainable_variables))
    return loss


for epoch in range(3):
    for batch in tf.data.Dataset.from_tensor_slices((x, y)).batch(20):
        loss = train_step(*batch)
    print(epoch, float(loss), float(optimizer.dynamic_scale))
print("updates", int(optimizer.iterations), int(optimizer.inner_optimizer.iterations))
