# https://sachinruk.github.io/blog/Quantile-Regression/
import keras
import numpy as np
from keras import ops

keras.utils.set_random_seed(3)
rng = np.random.default_rng(0)
x = rng.uniform(-2, 2, (130, 1)).astype("float32")
y = (np.sin(x) + rng.normal(size=x.shape) * 0.3).astype("float32")
inputs = keras.Input((1,))
hidden = keras.layers.Dense(12, "relu")(inputs)
outputs = {f"q{int(q * 100)}": keras.layers.Dense(1, name=f"q{int(q * 100)}")(hidden) for q in (0.1, 0.5, 0.9)}
model = keras.Model(inputs, outputs)
tilted = {
    name: lambda true, given, q=int(name[1:]) / 100: ops.mean(
        ops.maximum(q * (true - given), (q - 1) * (true - given)), axis=-1
    )
    for name in outputs
}
model.compile("adagrad", loss=tilted)
history = model.fit(x, dict.fromkeys(outputs, y), batch_size=32, epochs=5, verbose=0).history
print({name: values[-1] for name, values in sorted(history.items())})
print(
    [float(values.mean()) for values in model.predict(x, verbose=0).values()],
    "\nupdates",
    int(model.optimizer.iterations),
)
