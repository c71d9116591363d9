"""Cases that one worker must repeat exactly and several can only come close to.

Every worker draws its own dropout masks, and a BatchNormalization sees only its worker's share of the batch.
"""

from recording import Results, case, compiled, digits, fit
from tensorflow import keras

TRAINING = 64 * 20
UNSEEN = digits(400, start=1300)


def trained(layer: keras.layers.Layer) -> Results:
    layers = [
        keras.Input((64,)),
        keras.layers.Dense(32, activation="relu"),
        layer,
        keras.layers.Dense(10, activation="softmax"),
    ]
    return fit(compiled(keras.Sequential(layers)), *digits(TRAINING), validation_data=UNSEEN)


@case
def dropout() -> Results:
    return trained(keras.layers.Dropout(0.3, seed=9))


@case
def batch_normalization() -> Results:
    return trained(keras.layers.BatchNormalization(momentum=0.9))
