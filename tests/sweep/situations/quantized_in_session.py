# https://github.com/tensorflow/tensorflow/issues/15685
import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_eager_execution()
tf.set_random_seed(54)
rng = np.random.default_rng(0)
x_data = rng.normal(size=(60, 4)).astype("float32")
y_data = x_data.sum(1, keepdims=True)
x, y = tf.placeholder(tf.float32, [None, 4]), tf.placeholder(tf.float32, [None, 1])
low, high = tf.get_variable("low", initializer=-1.0), tf.get_variable("high", initializer=1.0)
kernel = tf.get_variable("kernel", [4, 6], initializer=tf.glorot_uniform_initializer(seed=1))
hidden = tf.nn.relu(tf.matmul(x, tf.quantization.fake_quant_with_min_max_vars(kernel, low, high, num_bits=4)))
out = tf.get_variable("out", [6, 1], initializer=tf.glorot_uniform_initializer(seed=2))
given = tf.matmul(tf.quantization.fake_quant_with_min_max_args(hidden, 0.0, 6.0), out)
loss = tf.losses.mean_squared_error(y, given)
step = tf.train.get_or_create_global_step()
train = tf.train.AdamOptimizer(0.05).minimize(loss, global_step=step)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for epoch in range(3):
        for start in range(0, 60, 25):
            _, value = session.run([train, loss], {x: x_data[start : start + 25], y: y_data[start : start + 25]})
        print(epoch, float(value), session.run([low, high]))
    print("updates", session.run(step))
