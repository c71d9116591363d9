# https://github.com/hereismari/tensorflow-maml/issues/3
import numpy as np
import tensorflow as tf

tf.keras.utils.set_random_seed(10)
rng = np.random.default_rng(0)
weights = [tf.Variable(tf.random.normal(shape, stddev=0.4)) for shape in ((1, 10), (10,), (10, 1), (1,))]
optimizer = tf.keras.optimizers.Adam(0.01)


def forward(x, w):
    return tf.nn.tanh(x @ w[0] + w[1]) @ w[2] + w[3]


for step in range(5):
    tasks = []
    for _ in range(3):
        height, phase = rng.uniform(0.5, 2), rng.uniform(0, 3)
        x = rng.uniform(-3, 3, (20, 1)).astype("float32")
        tasks.append((x, (height * np.sin(x + phase)).astype("float32")))
    with tf.GradientTape() as outer:
        total = 0.0
        for x, y in tasks:
            fast = list(weights)
            for _ in range(2):
                with tf.GradientTape() as inner:
                    inner.watch(fast)
                    loss = tf.reduce_mean((forward(x[:10], fast) - y[:10]) ** 2)
                fast = [w - 0.05 * g for w, g in zip(fast, inner.gradient(loss, fast))]
            total += tf.reduce_mean((forward(x[10:], fast) - y[10:]) ** 2)
    optimizer.apply_gradients(zip(outer.gradient(total, weights), weights))
    print(step, float(total))
print("updates", int(optimizer.iterations))
