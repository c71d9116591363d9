# https://github.com/ovh/ai-training-examples/issues/111
import keras
import numpy as np

keras.utils.set_random_seed(22)
rng = np.random.default_rng(0)
images = rng.random((30, 8, 8, 2)).astype("float32")
masks = keras.utils.to_categorical((images[..., 0] > 0.6).astype(int) + (images[..., 1] > 0.8), 3)
inputs = keras.Input((8, 8, 2))
down = keras.layers.Conv2D(4, 3, padding="same", activation="relu")(inputs)
deep = keras.layers.Conv2D(8, 3, padding="same", activation="relu")(keras.layers.MaxPooling2D()(down))
up = keras.layers.Conv2DTranspose(4, 3, 2, padding="same", activation="relu")(keras.layers.Dropout(0.2, seed=4)(deep))
model = keras.Model(inputs, keras.layers.Conv2D(3, 1, activation="softmax")(keras.layers.Concatenate()([up, down])))
model.compile(
    keras.optimizers.Adam(0.01), keras.losses.Dice(axis=(1, 2)), metrics=[keras.metrics.OneHotMeanIoU(3), "accuracy"]
)
for epoch in range(2):
    for first in range(0, 30, 12):
        logs = model.train_on_batch(images[first : first + 12], masks[first : first + 12], return_dict=True)
    print(epoch, {name: float(value) for name, value in logs.items()})
    model.reset_metrics()
print(model.evaluate(images, masks, verbose=0), "\nupdates", int(model.optimizer.iterations))
