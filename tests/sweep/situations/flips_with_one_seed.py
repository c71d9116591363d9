# https://github.com/keras-team/keras/issues/17457
import keras
import numpy as np

keras.utils.set_random_seed(20)
rng = np.random.default_rng(0)
x, y = rng.random((50, 10, 10, 1)).astype("float32"), rng.integers(0, 2, 50)
inputs = keras.Input((10, 10, 1))
one, two = keras.layers.RandomFlip(seed=42)(inputs), keras.layers.RandomFlip(seed=42)(inputs)
mixed = keras.layers.RandomRotation(0.1, seed=1)(
    keras.layers.RandomContrast(0.3, seed=2)(keras.layers.Subtract()([one, two]))
)
mixed = keras.layers.GaussianDropout(0.2, seed=6)(
    keras.layers.SpatialDropout2D(0.3, seed=7)(keras.layers.Conv2D(4, 3)(mixed))
)
outputs = keras.layers.Dense(1)(keras.layers.Flatten()(keras.layers.RandomZoom(0.2, seed=3)(mixed)))
model = keras.Model(inputs, outputs)
model.compile("adamax", "hinge")
print(model.fit(x, 2 * y - 1, batch_size=20, epochs=3, verbose=0).history, "\nupdates", int(model.optimizer.iterations))
