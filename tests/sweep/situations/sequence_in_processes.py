# https://github.com/keras-team/keras/issues/11634
import keras
import numpy as np


class Batches(keras.utils.PyDataset):
    def __init__(self, **options):
        super().__init__(**options)
        rng = np.random.default_rng(0)
        self.x = rng.normal(size=(90, 5)).astype("float32")
        self.y, self.order = self.x.sum(1), np.arange(90)

    def __len__(self):
        return 4

    def __getitem__(self, place):
        rows = self.order[place * 25 : place * 25 + 25]
        return self.x[rows], self.y[rows], np.abs(self.y[rows])


if __name__ == "__main__":
    keras.utils.set_random_seed(39)
    model = keras.Sequential([keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
    model.compile("rmsprop", "mse", weighted_metrics=["mae"])
    history = model.fit(Batches(workers=2, use_multiprocessing=True), shuffle=False, epochs=3, verbose=0).history
    print(history, "\nupdates", int(model.optimizer.iterations))
