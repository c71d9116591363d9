"""Skip-gram by TensorFlow 1: embedding_lookup, sampled softmax with a log-uniform sampler, a session, a polynomial rate."""

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
v1.disable_eager_execution()
v1.set_random_seed(4)
VOCABULARY, WIDTH, BATCH = 20_000, 32, 64
random = np.random.default_rng(0)
text = random.zipf(1.3, 5000) % VOCABULARY
centre, context = text[1:-1].astype("int32"), text[2:].astype("int64")[:, None]
inputs, labels = v1.placeholder(tf.int32, [None]), v1.placeholder(tf.int64, [None, 1])
table = v1.get_variable("embeddings", [VOCABULARY, WIDTH], initializer=v1.random_uniform_initializer(-1, 1, seed=1))
weights = v1.get_variable(
    "weights", [VOCABULARY, WIDTH], initializer=v1.truncated_normal_initializer(stddev=0.1, seed=2)
)
biases = v1.get_variable("biases", [VOCABULARY], initializer=v1.zeros_initializer())
candidates = tf.random.log_uniform_candidate_sampler(labels, 1, 16, True, VOCABULARY, seed=7)
loss = tf.reduce_mean(
    tf.nn.sampled_softmax_loss(
        weights, biases, labels, tf.nn.embedding_lookup(table, inputs), 16, VOCABULARY, sampled_values=candidates
    )
)
step = v1.train.get_or_create_global_step()
train = v1.train.GradientDescentOptimizer(v1.train.polynomial_decay(0.5, step, 300, 0.05)).minimize(
    loss, global_step=step
)
with v1.Session() as session:
    session.run(v1.global_variables_initializer())
    for epoch in range(3):
        losses = []
        for start in range(0, len(centre) - BATCH, BATCH):
            rows = slice(start, start + BATCH)
            losses.append(session.run([train, loss], {inputs: centre[rows], labels: context[rows]})[1])
        print("epoch", epoch, f"loss {np.mean(losses):.3f}")
    found = session.run(table)
    print("norm", f"{np.linalg.norm(found):.1f}", "steps", session.run(step))
