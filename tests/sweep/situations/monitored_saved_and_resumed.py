# https://github.com/tensorflow/tensorflow/issues/8425
import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_eager_execution()
rng = np.random.default_rng(0)
x_data = rng.normal(size=(200, 3)).astype("float32")
tf.set_random_seed(56)
x = tf.placeholder(tf.float32, [None, 3])
kernel = tf.get_variable("kernel", [3, 1], initializer=tf.glorot_uniform_initializer(seed=1))
loss = tf.reduce_mean((tf.matmul(x, kernel) - tf.reduce_sum(x, 1, keepdims=True)) ** 2)
step = tf.train.get_or_create_global_step()
average = tf.train.ExponentialMovingAverage(0.8, step)
minimized = tf.train.GradientDescentOptimizer(tf.train.exponential_decay(0.1, step, 4, 0.5, staircase=True)).minimize(
    loss, step
)
with tf.control_dependencies([minimized]):
    train = average.apply([kernel])
saver = tf.train.Saver(average.variables_to_restore())
place = 0
for last in (5, 9):
    hooks = [tf.train.StopAtStepHook(last_step=last), tf.train.NanTensorHook(loss)]
    with tf.train.MonitoredTrainingSession(
        checkpoint_dir="kept", hooks=hooks, save_checkpoint_steps=2, log_step_count_steps=None
    ) as session:
        while not session.should_stop():
            _, value, number = session.run([train, loss, step], {x: x_data[place : place + 20 + place % 3]})
            place += 20
            print(number, float(value))
with tf.Session() as session:
    saver.restore(session, tf.train.latest_checkpoint("kept"))
    print(session.run(kernel).tolist())
print("updates", tf.train.load_variable("kept", "global_step"))
