"""A script that counts how often each sample is seen."""

SEEN = """
    import keras
    import numpy as np

    keras.utils.set_random_seed(1)
    SAMPLES, BATCH = 1000, 10

    class Seen(keras.metrics.Metric):
        '''How often each sample was seen; the first column of x is its number.'''

        def __init__(self):
            super().__init__(name="seen")
            self.counts = self.add_weight(shape=(SAMPLES,), initializer="zeros", name="counts")

        def update_state(self, y_true, y_pred, sample_weight=None):
            index = keras.ops.cast(keras.ops.reshape(y_true, (-1,)), "int32")
            self.counts.assign_add(keras.ops.sum(keras.ops.one_hot(index, SAMPLES), axis=0))

        def result(self):
            return keras.ops.max(self.counts)

    class AtEnd(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            counts = keras.ops.convert_to_numpy(seen.counts)
            print("epoch", epoch, "seen", int(counts.min()), int(counts.max()), "iterations",
                  int(self.model.optimizer.iterations), flush=True)

    x = np.random.default_rng(0).normal(size=(SAMPLES, 4)).astype("float32")
    y = np.arange(SAMPLES, dtype="float32")[:, None]
    seen = Seen()
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(1e-9, momentum=0.9), "mse", metrics=[seen])
    model.fit(x, y, batch_size=BATCH, epochs=10, verbose=0, callbacks=[AtEnd()])
"""
