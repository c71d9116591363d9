# https://github.com/keras-team/keras/pull/17648
import keras
import numpy as np

keras.utils.set_random_seed(15)
rng = np.random.default_rng(0)
x, y = rng.random((60, 8, 8, 3)).astype("float32"), rng.integers(0, 4, 60)
model = keras.Sequential(
    [
        keras.Input((8, 8, 3)),
        keras.layers.SpectralNormalization(keras.layers.Conv2D(8, 3), power_iterations=2),
        keras.layers.GroupNormalization(4),
        keras.layers.Activation("silu"),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.SpectralNormalization(keras.layers.Dense(4)),
    ]
)
model.compile(
    keras.optimizers.Nadam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
)
print(model.fit(x, y, batch_size=25, epochs=3, verbose=0, validation_data=(x[:20], y[:20])).history)
print([float(np.abs(w).sum()) for w in model.get_weights()], "\nupdates", int(model.optimizer.iterations))
