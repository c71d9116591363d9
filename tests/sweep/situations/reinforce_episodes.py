# https://github.com/hubbs5/rl_blog
import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(8)
rng = np.random.default_rng(0)
policy = keras.Sequential([keras.Input((3,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(2)])
optimizer = keras.optimizers.Adam(0.02)
lengths = [9, 12, 9, 12]
for episode, length in enumerate(lengths):
    states, actions, rewards = [], [], []
    state = rng.normal(size=3).astype("float32")
    for _ in range(length):
        chances = tf.nn.softmax(policy(state[None]))[0].numpy().astype("float64")
        action = int(rng.random() > chances[0])
        states.append(state)
        actions.append(action)
        rewards.append(float(state[0] > 0) if action else float(state[1] > 0))
        state = (0.8 * state + 0.2 * rng.normal(size=3)).astype("float32")
    returns = np.array(
        [sum(0.95**k * reward for k, reward in enumerate(rewards[start:])) for start in range(length)], "float32"
    )
    returns = (returns - returns.mean()) / (returns.std() + 1e-6)
    with tf.GradientTape() as tape:
        logits = policy(np.array(states))
        surprise = tf.nn.sparse_softmax_cross_entropy_with_logits(actions, logits)
        loss = tf.reduce_mean(surprise * returns)
    grads = tape.gradient(loss, policy.trainable_variables)
    optimizer.apply_gradients(zip(grads, policy.trainable_variables))
    print(episode, sum(rewards), float(loss))
print("updates", int(optimizer.iterations))
