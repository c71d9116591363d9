# https://tensorflow.google.cn/api_docs/python/tf/keras/losses/binary_focal_crossentropy
import keras
import numpy as np

keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(250, 6)).astype("float32")
y = (x[:, :1] + 0.3 * x[:, 1:2] > 1.6).astype("float32")
model = keras.Sequential([keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
loss = keras.losses.BinaryFocalCrossentropy(
    apply_class_balancing=True, alpha=0.8, gamma=3.0, from_logits=True, label_smoothing=0.1
)
model.compile(
    keras.optimizers.Adam(0.01),
    loss,
    metrics=[keras.metrics.BinaryAccuracy(threshold=0.0), keras.metrics.FalseNegatives(0.0)],
)
history = model.fit(
    x, y, batch_size=64, epochs=4, verbose=0, validation_split=0.2, class_weight={0: 1.0, 1: 5.0}
).history
for name, values in history.items():
    print(name, values)
print("updates", int(model.optimizer.iterations))
