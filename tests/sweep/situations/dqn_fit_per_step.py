# https://github.com/germain-hug/Deep-RL-Keras/issues/34
import keras
import numpy as np

keras.utils.set_random_seed(9)
rng = np.random.default_rng(0)
agent, target = (
    keras.Sequential([keras.Input((4,)), keras.layers.Dense(12, "relu"), keras.layers.Dense(2)]) for _ in range(2)
)
agent.compile(keras.optimizers.RMSprop(1e-3), "mse")
target.set_weights(agent.get_weights())
memory = [
    (rng.normal(size=4), rng.integers(2), rng.normal(), rng.normal(size=4), rng.random() < 0.2) for _ in range(60)
]
for step in range(6):
    picked = [memory[i] for i in rng.integers(0, 60, 16)]
    s, a, r, after, done = (np.array(each) for each in zip(*picked))
    q, later, slow = agent.predict(s, verbose=0), agent.predict(after, verbose=0), target.predict(after, verbose=0)
    q[np.arange(16), a] = r + np.where(done, 0.0, 0.9 * slow[np.arange(16), later.argmax(1)])
    history = agent.fit(s, q, verbose=0).history
    target.set_weights([0.8 * old + 0.2 * new for old, new in zip(target.get_weights(), agent.get_weights())])
    print(step, history["loss"][0], float(np.abs(target.get_weights()[0]).sum()))
print("updates", int(agent.optimizer.iterations))
