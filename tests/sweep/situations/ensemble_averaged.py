# https://github.com/keras-team/keras/issues/2775
import keras
import numpy as np

rng = np.random.default_rng(0)
x, y = rng.normal(size=(80, 6)).astype("float32"), rng.integers(0, 3, 80)
members = []
for seed, hidden in ((1, "relu"), (2, "tanh"), (3, "elu")):
    keras.utils.set_random_seed(seed)
    member = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, hidden), keras.layers.Dense(3, "softmax")])
    member.compile("rmsprop", "sparse_categorical_crossentropy", metrics=["accuracy"])
    rows = rng.choice(80, 70)
    print(seed, member.fit(x[rows], y[rows], epochs=2, verbose=0).history)
    members.append(member)
probabilities = sum(member.predict(x, verbose=0) for member in members) / 3
print(float((probabilities.argmax(1) == y).mean()), probabilities[0].tolist())
inputs = keras.Input((6,))
for member in members[:2]:
    member.trainable = False
weighted = keras.layers.Dense(3, "softmax")(keras.layers.Concatenate()([member(inputs) for member in members]))
whole = keras.Model(inputs, weighted)
whole.compile("rmsprop", "sparse_categorical_crossentropy", metrics=["accuracy"])
print(whole.fit(x, y, epochs=2, verbose=0).history, "\nupdates", int(whole.optimizer.iterations))
