# https://github.com/tensorflow/tensorflow/issues/28707
import numpy as np
import tensorflow as tf

tf.keras.utils.set_random_seed(34)
rng = np.random.default_rng(0)
x = rng.normal(size=(70, 6, 2)).astype("float32") * 5
y = x.sum((1, 2), keepdims=True)[:, 0]
model = tf.keras.Sequential([tf.keras.layers.SimpleRNN(8), tf.keras.layers.Dense(1)])
optimizer = tf.keras.optimizers.SGD(0.01)
for epoch in range(3):
    norms = []
    for features, labels in tf.data.Dataset.from_tensor_slices((x, y)).shuffle(70, seed=2).batch(32):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(features) - labels) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        gradients = [tf.clip_by_value(tf.clip_by_norm(g, 2.0), -0.5, 0.5) for g in gradients]
        gradients, norm = tf.clip_by_global_norm(gradients, 1.5)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        norms.append(float(norm))
    print(epoch, float(loss), norms)
print("updates", int(optimizer.iterations))
