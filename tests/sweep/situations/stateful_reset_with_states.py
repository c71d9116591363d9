# https://github.com/keras-team/keras/issues/8317
import keras
import numpy as np

keras.utils.set_random_seed(49)
series = np.sin(np.arange(241) / 6).astype("float32") + np.random.default_rng(0).normal(0, 0.1, 241).astype("float32")
pieces = np.stack([series[k * 60 : k * 60 + 60] for k in range(4)]).reshape(4, 10, 6, 1)
nexts = np.stack([series[k * 60 + 1 : k * 60 + 61] for k in range(4)]).reshape(4, 10, 6, 1)
lstm = keras.layers.LSTM(5, stateful=True, return_sequences=True)
model = keras.Sequential([keras.Input(batch_shape=(4, 6, 1)), lstm, keras.layers.Dense(1)])
model.compile("adam", "mse")
for epoch in range(2):
    lstm.reset_states() if hasattr(lstm, "reset_states") else lstm.reset_state()
    lstm.states[0].assign(np.full((4, 5), 0.1 * (epoch + 1), "float32"))
    losses = [float(model.train_on_batch(pieces[:, k], nexts[:, k])) for k in range(10)]
    print(epoch, losses, [float(np.sum(state)) for state in lstm.states])
print("updates", int(model.optimizer.iterations))
