# https://github.com/keras-team/tf-keras/issues/77
import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(18)
rng = np.random.default_rng(0)
cities = rng.choice(["Paris", "Singapore", "Auckland", "Lima"], 85)
prices = np.char.str_len(cities).astype("float32") + rng.normal(size=85).astype("float32")
lookup = keras.layers.StringLookup()
lookup.adapt(cities)
texts = np.array([f"near {city} old town" for city in cities])
words = keras.layers.TextVectorization(output_sequence_length=4)
words.adapt(texts)
data = (
    tf.data.Dataset.from_tensor_slices(((cities, texts), prices))
    .batch(32)
    .map(lambda x, y: ((lookup(x[0]), words(x[1])), y), num_parallel_calls=tf.data.AUTOTUNE)
)
city, text = keras.Input((), dtype="int64"), keras.Input((4,), dtype="int64")
joined = keras.layers.Concatenate()(
    [
        keras.layers.Embedding(lookup.vocabulary_size(), 2)(city),
        keras.layers.GlobalMaxPooling1D()(keras.layers.Embedding(20, 3)(text)),
    ]
)
model = keras.Model([city, text], keras.layers.Dense(1)(joined))
model.compile(keras.optimizers.SGD(0.05, nesterov=True, momentum=0.9), "mae")
print(model.fit(data, epochs=4, verbose=0).history, "\nupdates", int(model.optimizer.iterations))
