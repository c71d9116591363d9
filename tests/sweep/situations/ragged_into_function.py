# https://github.com/keras-team/keras/issues/20073
import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(38)
rng = np.random.default_rng(0)
words = tf.ragged.constant([rng.integers(0, 9, rng.integers(1, 7)).tolist() for _ in range(50)])
labels = np.array([float(3 in row) for row in words.to_list()], "float32")
table = tf.Variable(tf.random.normal((9, 5), seed=1))
dense, optimizer = keras.layers.Dense(1), keras.optimizers.Adam(0.05)
dense.build((None, 5))


@tf.function(reduce_retracing=True)
def step(texts, true):
    with tf.GradientTape() as tape:
        meant = tf.reduce_mean(tf.nn.embedding_lookup(table, texts), axis=1)
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(true, dense(meant)[:, 0]))
    variables = [table, *dense.trainable_variables]
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
    return loss


for epoch in range(3):
    losses = [float(step(*batch)) for batch in tf.data.Dataset.from_tensor_slices((words, labels)).batch(20)]
    print(epoch, losses)
print("updates", int(optimizer.iterations))
