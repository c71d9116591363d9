"""TensorFlow 1 as it was written: placeholders, a graph, `minimize`, a session that is fed; on scikit-learn's digits.

python graph_session.py
fdt run --workers 2 graph_session.py
"""

import argparse
import time

import numpy as np
import tensorflow.compat.v1 as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

tf.disable_v2_behavior()


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def load_data():
    images, labels = load_digits(return_X_y=True)
    return train_test_split((images / 16).astype("float32"), labels, test_size=0.2, random_state=0)


def dense(inputs, units, name):
    with tf.variable_scope(name):
        weights = tf.get_variable(
            "weights", [inputs.shape[1].value, units], initializer=tf.glorot_uniform_initializer()
        )
        return tf.matmul(inputs, weights) + tf.get_variable("biases", [units], initializer=tf.zeros_initializer())


def main():
    arguments = parse_arguments()
    tf.set_random_seed(arguments.seed)
    x_train, x_test, y_train, y_test = load_data()

    images = tf.placeholder(tf.float32, [None, 64])
    labels = tf.placeholder(tf.int64, [None])
    logits = dense(tf.nn.relu(dense(images, 128, "hidden")), 10, "classes")
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), labels), tf.float32))
    global_step = tf.train.get_or_create_global_step()
    rate = tf.train.exponential_decay(2e-3, global_step, 100, 0.95)
    train = tf.train.AdamOptimizer(rate).minimize(loss, global_step=global_step)

    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        random = np.random.RandomState(arguments.seed)
        start = time.perf_counter()
        for epoch in range(arguments.epochs):
            losses = []
            order = random.permutation(len(x_train))
            for begin in range(0, len(order), arguments.batch_size):
                rows = order[begin : begin + arguments.batch_size]
                losses.append(session.run([loss, train], {images: x_train[rows], labels: y_train[rows]})[0])
            print(f"epoch {epoch + 1}: loss {np.mean(losses):.4f}, step {session.run(global_step)}")
        seconds = time.perf_counter() - start
        reached = session.run(accuracy, {images: x_test, labels: y_test})
    print(f"trained in {seconds:.2f} s")
    print(f"final loss {np.mean(losses):.4f}  test accuracy {reached:.4f}")


if __name__ == "__main__":
    main()
