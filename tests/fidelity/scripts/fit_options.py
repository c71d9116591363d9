"""Cases: what `fit` takes besides data, what it prints, and callbacks."""

import contextlib
import io
import pathlib
import tempfile
from typing import Any

import numpy as np
from recording import Results, case, compiled, digits, fit, from_model, from_weights
from tensorflow import keras

# Whole batches: another size is another graph for all of them, and what becomes of it other cases show.
EVEN = 4 * 64
VALIDATION = digits(70, start=1000)


@case
def validation_data() -> Results:
    return fit(compiled(), *digits(EVEN), validation_data=VALIDATION)


@case
def validation_split() -> Results:
    return fit(compiled(), *digits(EVEN), validation_split=0.25)


@case
def validation_freq_initial_epoch() -> Results:
    return fit(compiled(), *digits(EVEN), validation_data=VALIDATION, validation_freq=2, initial_epoch=1)


@case
def steps_per_epoch() -> Results:
    return fit(compiled(), *digits(640), steps_per_epoch=3, epochs=3)


def printed(verbose: int) -> Results:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        results = fit(compiled(), *digits(EVEN), validation_data=VALIDATION, verbose=verbose, epochs=3)
    lines = output.getvalue().replace("\x08", "").replace("\r", "\n").splitlines()
    # A progress bar is drawn as often as time allows; its last state in each epoch has all the steps.
    kept = [line.strip() for line in lines if "Epoch" in line or ("4/4" in line and "val_loss" in line)]
    return {**results, "text/lines": np.array(kept)}


@case
def verbose_1() -> Results:
    return printed(1)


class FullBar(keras.callbacks.ProgbarLogger):
    """Keeps what the bar is given in each epoch's last step: where it draws itself then, that is printed."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[list[float]] = []

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_train_batch_end(batch, logs)
        if batch + 1 == self.target:
            self.given.append([float(value) for value in (logs or {}).values()])


@case
def verbose_1_full_bar() -> Results:
    bar = FullBar()
    # Keras prints the bar in any case.
    with contextlib.redirect_stdout(io.StringIO()):
        results = fit(compiled(), *digits(EVEN), epochs=3, callbacks=[bar])
    return {**results, "history/full_bar": np.array(bar.given)}


@case
def verbose_2() -> Results:
    return printed(2)


@case
def early_stopping() -> Results:
    stopping = keras.callbacks.EarlyStopping("val_accuracy", min_delta=0.05, patience=1, restore_best_weights=True)
    return fit(compiled(), *digits(EVEN), validation_data=VALIDATION, epochs=30, callbacks=[stopping])


@case
def reduce_on_plateau() -> Results:
    plateau = keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.3, patience=1, min_delta=0.3)
    return fit(compiled(), *digits(EVEN), validation_data=VALIDATION, epochs=8, callbacks=[plateau])


@case
def rate_scheduler() -> Results:
    scheduler = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.7)
    return fit(compiled(), *digits(EVEN), callbacks=[scheduler])


@case
def checkpoint() -> Results:
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "{epoch:02d}.weights.h5"
        saving = keras.callbacks.ModelCheckpoint(str(path), save_weights_only=True)
        results = fit(compiled(), *digits(EVEN), epochs=3, callbacks=[saving])
        for number, saved in enumerate(sorted(pathlib.Path(directory).iterdir())):
            model = compiled()
            model.load_weights(saved)
            results.update(from_weights(model.get_weights(), f"epoch{number}_"))
    return results


class BatchLogs(keras.callbacks.Callback):
    """Keeps the logs and the iterations of every batch: lock step."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[str, float]] = []
        self.iterations: list[int] = []

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        self.rows.append(dict(logs or {}))
        self.iterations.append(int(self.model.optimizer.iterations))


@case
def batch_logs() -> Results:
    seen = BatchLogs()
    results = fit(compiled(), *digits(EVEN), callbacks=[seen], epochs=3)
    results.update({f"logs/{name}": np.array([row[name] for row in seen.rows]) for name in seen.rows[0]})
    return {**results, "count/seen_iterations": np.array(seen.iterations)}


class RatePerBatch(keras.callbacks.Callback):
    """A learning rate that depends on the batch."""

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        self.model.optimizer.learning_rate = 0.02 * (1 + batch % 3)


@case
def rate_per_batch() -> Results:
    return fit(compiled(), *digits(EVEN), callbacks=[RatePerBatch()])


class Shrink(keras.callbacks.Callback):
    """Changes the weights between epochs."""

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        layer = self.model.get_layer("hidden")
        layer.set_weights([0.8 * value for value in layer.get_weights()])


@case
def weights_set_between_epochs() -> Results:
    return fit(compiled(), *digits(EVEN), callbacks=[Shrink()])


class FitsMore(keras.callbacks.Callback):
    """Trains others after each epoch: a head on a layer of the model, once the model itself, a third by the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.other = compiled(optimizer=keras.optimizers.Adam(0.003))
        self.losses: list[float] = []

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        hidden = self.model.get_layer("hidden")
        head = keras.Sequential(
            [keras.Input((64,)), hidden, keras.layers.Dense(10, "softmax", kernel_initializer="zeros")]
        )
        compiled(head).fit(*digits(EVEN), batch_size=64, epochs=1, verbose=0)
        self.losses.extend(head.history.history["loss"])
        if epoch == 1:
            self.losses.extend(self.model.fit(*digits(128), verbose=0).history["loss"])
        self.losses.append(float(np.ravel(self.other.train_on_batch(*digits(64)))[0]))


@case
def fits_in_a_callback() -> Results:
    more = FitsMore()
    results = fit(compiled(), *digits(EVEN), epochs=3, callbacks=[more])
    results["history/others"] = np.array(more.losses)
    return {**results, **from_weights(more.other.get_weights(), "other_")}


class FitsPerBatch(keras.callbacks.Callback):
    """Trains another model between two batches."""

    def __init__(self) -> None:
        super().__init__()
        self.other = compiled()

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        if batch == 1:
            self.other.fit(*digits(128), verbose=0)


@case
def fits_between_batches() -> Results:
    more = FitsPerBatch()
    results = fit(compiled(), *digits(EVEN), epochs=2, callbacks=[more])
    return {**results, **from_weights(more.other.get_weights(), "other_")}


class WeightsPerBatch(keras.callbacks.Callback):
    """Reads and changes the weights between batches."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[np.ndarray] = []

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        bias = self.model.get_layer("hidden").bias
        self.seen.append(np.array(bias))
        if batch % 2:
            bias.assign(np.clip(np.array(bias), -0.02, 0.02))


@case
def weights_per_batch() -> Results:
    seen = WeightsPerBatch()
    results = fit(compiled(), *digits(EVEN), callbacks=[seen], epochs=3)
    return {**results, "weights/per_batch": np.array(seen.seen)}


class StopEarly(keras.callbacks.Callback):
    """Ends training in the middle of an epoch."""

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        if int(self.model.optimizer.iterations) == 6:
            self.model.stop_training = True


@case
def stop_in_epoch() -> Results:
    return fit(compiled(), *digits(EVEN), callbacks=[StopEarly()])


@case
def keras_callbacks() -> Results:
    """Keras's own, together: what they write is compared too."""
    callbacks = keras.callbacks
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        seen: list[float] = []
        used = [
            callbacks.ModelCheckpoint(str(directory / "{batch:04d}.weights.h5"), save_weights_only=True, save_freq=3),
            callbacks.BackupAndRestore(str(directory / "backup")),
            callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
            callbacks.CSVLogger(str(directory / "log.csv")),
            callbacks.TerminateOnNaN(),
            callbacks.TensorBoard(str(directory / "board"), update_freq=2),
            callbacks.SwapEMAWeights(swap_on_epoch=True),
            callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(logs["loss"])),
        ]
        optimizer = keras.optimizers.SGD(0.05, momentum=0.9, use_ema=True, ema_momentum=0.9)
        results = fit(
            compiled(optimizer=optimizer), *digits(EVEN), validation_data=VALIDATION, epochs=3, callbacks=used
        )
        rows = (directory / "log.csv").read_text().splitlines()
        results["logs/csv_loss"] = np.array(
            [float(row.split(",")[rows[0].split(",").index("loss")]) for row in rows[1:]]
        )
        results["logs/seen_loss"] = np.array(seen)
        for saved in sorted(directory.glob("*.weights.h5")):
            model = compiled()
            model.load_weights(saved)
            results.update(from_weights(model.get_weights(), f"{saved.name}_"))
        results["count/board"] = np.array(len(list((directory / "board" / "train").iterdir())))
    return results


@case
def interrupted_and_resumed() -> Results:
    """A fit that fails in its second epoch, and the next one that goes on from the backup."""

    class Fails(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
            if epoch == 2:
                raise RuntimeError("a planted fault")

    with tempfile.TemporaryDirectory() as name:
        model, backup = compiled(), keras.callbacks.BackupAndRestore(str(pathlib.Path(name) / "backup"))
        with contextlib.suppress(RuntimeError):
            fit(model, *digits(EVEN), shuffle=False, callbacks=[backup, Fails()])
        return fit(compiled(), *digits(EVEN), shuffle=False, callbacks=[backup])


@case
def fits_without_a_step() -> Results:
    """Fits that make no step leave a model as it was, whether it has been trained before or not."""

    class Interrupted(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
            raise KeyboardInterrupt

    untrained, trained = compiled(), compiled()
    options = {"batch_size": 64, "verbose": 0}
    # Keras 2 refuses it.
    with contextlib.suppress(ValueError):
        untrained.fit(*digits(EVEN), epochs=0, **options)
    untrained.fit(*digits(EVEN), epochs=2, initial_epoch=2, **options)
    with contextlib.suppress(KeyboardInterrupt):
        untrained.fit(*digits(EVEN), callbacks=[Interrupted()], **options)
    results = fit(trained, *digits(EVEN), epochs=2)
    trained.fit(*digits(EVEN), epochs=2, initial_epoch=2, **options)
    return {**results, **from_model(trained, "trained/"), **from_weights(untrained.get_weights(), "untrained/")}


@case
def weighted_metrics() -> Results:
    weights = np.linspace(0.2, 2.0, EVEN).astype("float32")
    model = compiled(weighted_metrics=["accuracy"], loss_weights=0.5)
    validation = (*VALIDATION, np.linspace(0.5, 1.5, 70).astype("float32"))
    options = {
        "sample_weight": weights,
        "validation_data": validation,
        "validation_batch_size": 32,
        "validation_steps": 2,
    }
    return fit(model, *digits(EVEN), **options)


@case
def jit_compiled() -> Results:
    return fit(compiled(jit_compile=True), *digits(EVEN))


@case
def mixed_precision() -> Results:
    """Half-precision arithmetic with a loss scale."""
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(24, activation="relu", dtype="mixed_float16"),
            keras.layers.Dense(10, activation="softmax", dtype="float32"),
        ]
    )
    model.compile(keras.optimizers.SGD(0.05), "sparse_categorical_crossentropy", auto_scale_loss=True)
    return fit(model, *digits(EVEN))
