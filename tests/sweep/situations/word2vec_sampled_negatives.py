# https://github.com/tensorflow/text/issues/1228
import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(59)
sentence = np.random.default_rng(0).integers(1, 20, 60)
pairs = [(sentence[i], sentence[j]) for i in range(60) for j in range(max(0, i - 1), min(60, i + 2)) if i != j][:110]
targets, contexts, labels = [], [], []
for number, (target, context) in enumerate(pairs):
    true = tf.constant([[context]], dtype="int64")
    negatives, _, _ = tf.random.log_uniform_candidate_sampler(true, 1, 3, True, 20, seed=number)
    targets.append(target)
    contexts.append(tf.concat([[context], negatives], 0))
    labels.append([1, 0, 0, 0])


class Word2Vec(keras.Model):
    def __init__(self):
        super().__init__()
        self.targets, self.contexts = keras.layers.Embedding(20, 6), keras.layers.Embedding(20, 6)

    def call(self, pair):
        target, context = pair
        return tf.einsum("be,bce->bc", self.targets(target), self.contexts(context))


data = (
    tf.data.Dataset.from_tensor_slices(((np.array(targets), np.array(contexts)), np.array(labels)))
    .shuffle(110, seed=1)
    .batch(32)
)
model = Word2Vec()
model.compile("adam", keras.losses.CategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
print(model.fit(data, epochs=3, verbose=0).history, "\nupdates", int(model.optimizer.iterations))
