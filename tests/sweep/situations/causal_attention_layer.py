# https://github.com/keras-team/keras/issues/21284
import keras
import numpy as np

keras.utils.set_random_seed(11)


class Block(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.attention, self.norm = (
            keras.layers.MultiHeadAttention(2, 4, dropout=0.1, seed=5),
            keras.layers.LayerNormalization(),
        )

    def call(self, x, mask=None, training=False):
        return self.norm(x + self.attention(x, x, use_causal_mask=True, training=training))


tokens = np.random.default_rng(0).integers(0, 12, (70, 9))
model = keras.Sequential([keras.layers.Embedding(12, 8, mask_zero=True), Block(), keras.layers.Dense(12)])
model.compile(
    "adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0), metrics=["accuracy"]
)
print(model.fit(tokens[:, :-1], tokens[:, 1:], batch_size=32, epochs=3, verbose=0).history)
print("updates", int(model.optimizer.iterations))
