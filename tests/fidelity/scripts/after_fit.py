"""Cases: the script goes on after `fit`, with what `fit` left in its objects."""

import pathlib
import tempfile

import numpy as np
from recording import Results, case, compiled, digits, fit, from_history, from_model, from_weights, mlp
from tensorflow import keras

# Whole batches: another size is another graph for all of them, and what becomes of it other cases show.
EVEN = 4 * 64
UNSEEN = digits(90, start=1200)


def evaluated(model: keras.Model, prefix: str = "") -> Results:
    numbers = model.evaluate(*UNSEEN, verbose=0, return_dict=True)
    return {f"evaluate/{prefix}{name}": np.array(value) for name, value in numbers.items()}


def predicted(model: keras.Model, prefix: str = "") -> Results:
    return {f"predict/{prefix}": model.predict(UNSEEN[0], verbose=0)}


@case
def evaluate_predict() -> Results:
    model = compiled()
    results = fit(model, *digits(EVEN))
    called = {"predict/called": np.array(model(UNSEEN[0][:5]))}
    return {**results, **evaluated(model), **predicted(model), **called}


@case
def save_load() -> Results:
    model = compiled(optimizer=keras.optimizers.Adam(0.003))
    results = fit(model, *digits(EVEN))
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "model.keras"
        model.save(path)
        loaded = keras.models.load_model(path)
    same = np.array_equal(loaded.predict(UNSEEN[0], verbose=0), model.predict(UNSEEN[0], verbose=0))
    results.update({**predicted(loaded), **from_model(loaded, "loaded_"), "count/same": np.array(same)})
    return {**results, **fit(loaded, *digits(EVEN), prefix="again_", epochs=1)}


@case
def second_fit() -> Results:
    model = compiled(optimizer=keras.optimizers.Adam(0.003))
    first = fit(model, *digits(EVEN), prefix="first_", epochs=2)
    between = evaluated(model, "between_")
    return {**first, **between, **fit(model, *digits(EVEN), prefix="second_", epochs=3)}


@case
def second_fit_other_data() -> Results:
    model = compiled()
    first = fit(model, *digits(EVEN), prefix="first_", epochs=2)
    return {**first, **fit(model, *digits(130, start=600), prefix="second_", batch_size=50, epochs=2)}


@case
def arrays_changed_in_place() -> Results:
    x, y = digits(EVEN)
    model = compiled()
    first = fit(model, x, y, prefix="first_", epochs=2)
    x[:] = 1.0 - x
    return {**first, **fit(model, x, y, prefix="second_", epochs=2)}


@case
def weights_set_by_hand() -> Results:
    model = compiled()
    first = fit(model, *digits(EVEN), prefix="first_", epochs=2)
    model.set_weights([0.5 * value for value in model.get_weights()])
    return {**first, **fit(model, *digits(EVEN), prefix="second_", epochs=2)}


@case
def rate_set_by_hand() -> Results:
    model = compiled()
    first = fit(model, *digits(EVEN), prefix="first_", epochs=2)
    model.optimizer.learning_rate = 0.01
    return {**first, **fit(model, *digits(EVEN), prefix="second_", epochs=2)}


@case
def recompiled() -> Results:
    model = compiled()
    first = fit(model, *digits(EVEN), prefix="first_", epochs=2)
    compiled(model, keras.optimizers.Adam(0.003))
    return {**first, **fit(model, *digits(EVEN), prefix="second_", epochs=2)}


@case
def frozen_recompiled() -> Results:
    model = compiled()
    first = fit(model, *digits(EVEN), prefix="first_", epochs=2)
    model.get_layer("hidden").trainable = False
    compiled(model)
    second = fit(model, *digits(EVEN), prefix="second_", epochs=2)
    kept = np.array_equal(second["weights/second_0"], first["weights/first_0"])
    return {**first, **second, "count/kept": np.array(kept)}


@case
def two_models() -> Results:
    one, other = compiled(), compiled(optimizer=keras.optimizers.Adam(0.003))
    first = fit(one, *digits(EVEN), prefix="one_", epochs=2)
    second = fit(other, *digits(EVEN), prefix="other_", epochs=2)
    return {**first, **second, **fit(one, *digits(EVEN), prefix="one_again_", epochs=2)}


@case
def shared_layers() -> Results:
    """A part of a trained model is trained on inside another one."""
    base = mlp()
    first = fit(compiled(base), *digits(EVEN), prefix="base_", epochs=2)
    hidden = keras.Sequential([keras.Input((64,)), base.get_layer("hidden"), keras.layers.Dense(10, "softmax")])
    second = fit(compiled(hidden), *digits(EVEN), prefix="on_top_", epochs=2)
    return {**first, **second, **from_weights(base.get_weights(), "base_after_")}


@case
def history_object() -> Results:
    model = compiled()
    history = model.fit(*digits(EVEN), epochs=2, verbose=0)
    same = history is model.history and history.model is model
    return {**from_history(history), **evaluated(model), "count/same": np.array(same)}
