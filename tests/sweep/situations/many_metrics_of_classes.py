# https://github.com/keras-team/keras/issues/11969
import keras
import numpy as np

keras.utils.set_random_seed(23)
rng = np.random.default_rng(0)
x, y = rng.normal(size=(110, 5)).astype("float32"), keras.utils.to_categorical(rng.integers(0, 4, 110), 4)
model = keras.Sequential([keras.layers.Dense(8, "gelu"), keras.layers.Dense(4, "softmax")])
m = keras.metrics
metrics = [
    m.TopKCategoricalAccuracy(2),
    m.Precision(top_k=2, class_id=1),
    m.Recall(class_id=3, thresholds=[0.2, 0.3]),
    m.CosineSimilarity(),
    m.KLDivergence(),
]
metrics += [
    m.SensitivityAtSpecificity(0.5, 20, class_id=0),
    m.RecallAtPrecision(0.3, 20),
    m.AUC(20, curve="PR", multi_label=True),
    m.F1Score("weighted"),
    m.R2Score(),
    m.LogCoshError(),
    m.CategoricalHinge(),
]
model.compile("nadam", "categorical_crossentropy", metrics=metrics)
history = model.fit(
    x, y, batch_size=32, epochs=3, verbose=0, validation_data=(x[:50], y[:50]), sample_weight=rng.random(110)
).history
for name, values in history.items():
    print(name, np.array(values[-1]).tolist(), np.array(values[0]).tolist())
print("updates", int(model.optimizer.iterations))
