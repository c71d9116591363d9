# https://github.com/keras-team/keras/issues/1558
import keras
import numpy as np

keras.utils.set_random_seed(13)
films = (np.random.default_rng(0).random((14, 6, 8, 8, 1)) > 0.7).astype("float32")
model = keras.Sequential(
    [
        keras.Input((5, 8, 8, 1)),
        keras.layers.ConvLSTM2D(4, 3, padding="same", return_sequences=True),
        keras.layers.BatchNormalization(),
        keras.layers.ConvLSTM2D(4, 3, padding="same", return_sequences=True, dropout=0.1, seed=4),
        keras.layers.Conv3D(1, 3, padding="same", activation="sigmoid"),
    ]
)
model.compile(keras.optimizers.Adadelta(0.5), "binary_crossentropy")
print(model.fit(films[:, :-1], films[:, 1:], batch_size=4, epochs=2, verbose=0, validation_split=0.2).history)
print("updates", int(model.optimizer.iterations))
