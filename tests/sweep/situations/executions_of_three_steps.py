# https://github.com/keras-team/keras/issues/19953
import keras
import numpy as np

keras.utils.set_random_seed(48)
rng = np.random.default_rng(0)
x, y = rng.normal(size=(220, 4)), rng.choice([0.0, 1.0], size=220, p=[0.5, 0.5])
model = keras.Sequential()
for _ in range(4):
    model.add(keras.layers.Dense(16, activation="relu"))
    model.add(keras.layers.Dropout(rate=0.1))
model.add(keras.layers.Dense(1, activation="sigmoid"))
loss = keras.losses.BinaryCrossentropy(label_smoothing=0.05)
model.compile(
    keras.optimizers.Adam(0.001),
    loss,
    metrics=[keras.metrics.AUC(name="auc")],
    jit_compile=False,
    steps_per_execution=3,
)
seen = []
counting = keras.callbacks.LambdaCallback(
    on_train_batch_end=lambda batch, logs: seen.append((batch, float(logs["loss"])))
)
for half in (slice(0, 110), slice(110, 220)):
    print(model.fit(x[half], y[half], batch_size=25, epochs=2, verbose=0, callbacks=[counting]).history)
print(seen, "\nupdates", int(model.optimizer.iterations))
