# https://github.com/keras-team/keras/pull/21139
import keras
import numpy as np

keras.utils.set_random_seed(53)
rng = np.random.default_rng(0)
x, y = rng.integers(0, 12, (70, 5)), rng.integers(0, 3, 70)
embedding, dense = keras.layers.Embedding(12, 6), keras.layers.Dense(8, "relu")
model = keras.Sequential(
    [keras.Input((5,)), embedding, keras.layers.GlobalAveragePooling1D(), dense, keras.layers.Dense(3, "softmax")]
)
model.compile("adam", "sparse_categorical_crossentropy")
print(model.fit(x, y, epochs=2, verbose=0).history)
embedding.enable_lora(rank=2)
dense.enable_lora(rank=2, lora_alpha=4)
model.compile(keras.optimizers.AdamW(0.05), "sparse_categorical_crossentropy", metrics=["accuracy"])
print(len(model.trainable_weights), model.fit(x, y, epochs=3, verbose=0).history)
print([float(np.abs(w).sum()) for w in model.get_weights()], float(np.abs(np.array(dense.kernel)).sum()))
print("updates", int(model.optimizer.iterations))
