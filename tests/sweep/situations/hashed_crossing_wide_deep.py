# https://github.com/keras-team/keras/issues/14972
import keras
import numpy as np

keras.utils.set_random_seed(19)
rng = np.random.default_rng(0)
day, hour = rng.choice(["mo", "tu", "sa"], 100), rng.integers(0, 24, 100)
y = ((day == "sa") & (hour > 12)).astype("float32")
days, hours = keras.Input((1,), dtype="string", name="day"), keras.Input((1,), dtype="int64", name="hour")
hashed = keras.layers.Hashing(8)(days)
crossed = keras.layers.HashedCrossing(16, output_mode="one_hot")((hashed, hours))
wide = keras.layers.Concatenate()([keras.layers.CategoryEncoding(8, "one_hot")(hashed), crossed])
deep = keras.layers.Dense(6, "relu")(keras.layers.Flatten()(keras.layers.Embedding(24, 3)(hours)))
model = keras.Model(
    [days, hours], keras.layers.Dense(1, "sigmoid", kernel_regularizer="l1")(keras.layers.Concatenate()([wide, deep]))
)
model.compile(
    keras.optimizers.Ftrl(0.1, l1_regularization_strength=0.001),
    "binary_crossentropy",
    metrics=[keras.metrics.AUC(num_thresholds=20)],
)
import tensorflow as tf

data = tf.data.Dataset.from_tensor_slices(({"day": day[:, None], "hour": hour[:, None]}, y)).batch(32)
print(model.fit(data, epochs=3, verbose=0).history, "\nupdates", int(model.optimizer.iterations))
