# https://github.com/keras-team/keras-io/pull/1435
import keras
import numpy as np

x = np.random.default_rng(0).normal(size=(70, 5)).astype("float32")
y = (x[:, :2] * x[:, 2:4]).astype("float32")
made = {
    "lion": lambda: keras.optimizers.Lion(1e-2, weight_decay=1e-2),
    "adafactor": lambda: keras.optimizers.Adafactor(0.05, relative_step=True),
    "lamb": lambda: keras.optimizers.Lamb(0.02),
    "muon": lambda: keras.optimizers.Muon(0.02, exclude_layers=["out"]),
    "free": lambda: keras.optimizers.ScheduleFreeAdamW(0.02, warmup_steps=2),
}
for name, optimizer in made.items():
    keras.utils.set_random_seed(29)
    model = keras.Sequential(
        [keras.layers.Dense(6, "tanh"), keras.layers.Dense(4, "tanh"), keras.layers.Dense(2, name="out")]
    )
    model.compile(optimizer(), "mse")
    losses = model.fit(x, y, batch_size=32, epochs=3, verbose=0).history["loss"]
    print(name, losses, float(np.abs(model.get_weights()[0]).sum()), "\nupdates", int(model.optimizer.iterations))
