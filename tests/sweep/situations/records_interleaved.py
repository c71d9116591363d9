# https://github.com/tensorflow/tensorflow/issues/8787
import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(36)
rng = np.random.default_rng(0)
for part in range(3):
    with tf.io.TFRecordWriter(f"part{part}.tfrecord") as writer:
        for _ in range(30):
            image, label = rng.integers(0, 255, (6, 6, 1)).astype("uint8"), int(rng.integers(0, 3))
            feature = {
                "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[tf.io.encode_png(image).numpy()])),
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
parsed = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}


def read(record):
    example = tf.io.parse_single_example(record, parsed)
    return tf.cast(tf.reshape(tf.io.decode_png(example["image"]), (6, 6, 1)), tf.float32) / 255.0, example["label"]


files = tf.data.Dataset.list_files("part*.tfrecord", shuffle=False)
data = (
    files.interleave(tf.data.TFRecordDataset, cycle_length=3)
    .map(read)
    .cache()
    .shuffle(50, seed=1)
    .batch(32)
    .prefetch(1)
)
model = keras.Sequential([keras.layers.Conv2D(4, 3, activation="relu"), keras.layers.Flatten(), keras.layers.Dense(3)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
print(model.fit(data, epochs=3, verbose=0).history, "\nupdates", int(model.optimizer.iterations))
