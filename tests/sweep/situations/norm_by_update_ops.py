# https://github.com/tensorflow/tensorflow/issues/3265
import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
tf.set_random_seed(55)
rng = np.random.default_rng(0)
x_data = rng.normal(1.0, 2.0, size=(60, 4)).astype("float32")
y_data = (x_data.sum(1) > 4).astype("int32")
x, y, is_training = tf.placeholder(tf.float32, [None, 4]), tf.placeholder(tf.int32, [None]), tf.placeholder(tf.bool, [])


def batch_norm(value, name):
    with tf.variable_scope(name):
        size = value.shape[-1]
        beta, gamma = (
            tf.get_variable("beta", [size], initializer=tf.zeros_initializer()),
            tf.get_variable("gamma", [size], initializer=tf.ones_initializer()),
        )
        slow_mean = tf.get_variable("mean", [size], initializer=tf.zeros_initializer(), trainable=False)
        slow_var = tf.get_variable("var", [size], initializer=tf.ones_initializer(), trainable=False)
        mean, var = tf.nn.moments(value, [0])
        for slow, fresh in ((slow_mean, mean), (slow_var, var)):
            tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.assign(slow, 0.8 * slow + 0.2 * fresh))
        mean, var = tf.cond(is_training, lambda: (mean, var), lambda: (slow_mean, slow_var))
        return tf.nn.batch_normalization(value, mean, var, beta, gamma, 1e-3)


kernel = tf.get_variable("kernel", [4, 6], initializer=tf.truncated_normal_initializer(0.0, 0.3, seed=3))
head = tf.get_variable("head", [6, 2], initializer=tf.truncated_normal_initializer(0.0, 0.3, seed=4))
loss = tf.losses.sparse_softmax_cross_entropy(y, tf.matmul(tf.nn.relu(batch_norm(tf.matmul(x, kernel), "norm")), head))
with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
    train = tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss, global_step=tf.train.get_or_create_global_step())
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for epoch in range(3):
        for start in range(0, 60, 25):
            session.run(train, {x: x_data[start : start + 25], y: y_data[start : start + 25], is_training: True})
        print(epoch, float(session.run(loss, {x: x_data, y: y_data, is_training: False})))
    print(
        [float(v.sum()) for v in session.run(tf.global_variables("norm"))],
        "\nupdates",
        session.run(tf.train.get_global_step()),
    )
