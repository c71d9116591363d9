"""Finds out when a fit's callbacks read the logs, which decides how often the pool sends metrics back."""

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from fdt.capture.keras.version import KerasVersion

# Callbacks of Keras whose batch hooks do nothing unless an attribute says otherwise.
_IDLE_UNLESS = {"ModelCheckpoint": "save_freq", "BackupAndRestore": "save_freq", "TensorBoard": "update_freq"}
# Horovod's, which gives the only rank the weights that it has.
_BROADCASTS = "BroadcastGlobalVariablesCallback"
_BATCH_HOOKS = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")
# Callbacks of Keras whose hooks of batches that train nothing, if not overridden, only count.
_COUNT = ("ProgbarLogger", "TensorBoard")
# A training that is only checked writes checkpoint files of at most so many epochs.
_MAX_CHECKPOINTS = 16


@dataclasses.dataclass(frozen=True)
class Audience:
    """What of a training is read while it runs.

    Attributes:
        logs_each_step: A callback or the script reads every step's logs.
        progress: A progress bar is shown.
    """

    logs_each_step: bool
    progress: bool

    @classmethod
    def of_fit(cls, keras: KerasVersion, arguments: Mapping[str, Any]) -> "Audience":
        """Reads the arguments of `fit`.

        Args:
            keras: The model's generation of Keras.
            arguments: Those of `fit`.
        """
        callbacks = flatten(keras, arguments["callbacks"])
        return cls(
            logs_each_step=any(_has_batch_hooks(keras, callback) for callback in callbacks),
            progress=arguments["verbose"] not in (0, 2)
            or any(isinstance(c, keras.callbacks.ProgbarLogger) for c in callbacks),
        )

    @classmethod
    def of_script(cls) -> "Audience":
        """Returns what a script that calls `train_on_batch` reads."""
        return cls(logs_each_step=True, progress=False)


def flatten(keras: KerasVersion, callbacks: Any) -> list[Any]:
    """Returns the callbacks that the script gave to `fit`, without Keras's own History and progress bar."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        kept = (keras.callbacks.History, keras.callbacks.ProgbarLogger)
        return [callback for callback in callbacks.callbacks if not isinstance(callback, kept)]
    return tf.nest.flatten(callbacks) if callbacks else []


def write_files(keras: KerasVersion, model: Any, arguments: Mapping[str, Any], names: Iterable[str]) -> None:
    """Makes Keras's callbacks write their files although nothing was trained: the script may read them again.

    Args:
        keras: The model's generation of Keras.
        model: The untrained model.
        arguments: Those of `fit`.
        names: Names of the logs; each is written as 0.
    """
    epochs, logs = range(arguments["initial_epoch"], arguments["epochs"]), dict.fromkeys(names, 0.0)
    for callback in flatten(keras, arguments["callbacks"]):
        if not isinstance(callback, (keras.callbacks.CSVLogger, keras.callbacks.ModelCheckpoint)):
            continue
        # If a file cannot be written, the script fails where it reads it.
        with contextlib.suppress(OSError, ValueError):
            callback.set_model(model)
            callback.on_train_begin()
            if isinstance(getattr(callback, "save_freq", None), int):
                callback._save_model(epochs.stop - 1, 0, logs)
            for epoch in _written(callback, epochs):
                callback.on_epoch_end(epoch, logs)
            callback.on_train_end()


def _written(callback: Any, epochs: range) -> Sequence[int]:
    """Returns the epochs at whose end a callback is made to write its file."""
    path = str(getattr(callback, "filepath", ""))
    if not path:
        return epochs
    # One file an epoch, held in memory.
    own = epochs[:_MAX_CHECKPOINTS] if "{epoch" in path else ()
    return sorted({*own, *epochs[-1:]})


def watches(keras: KerasVersion, callbacks: Any, kind: str) -> str | None:
    """Returns the class of a callback that is called for each batch that trains nothing; None if there is none.

    Args:
        keras: The model's generation of Keras.
        callbacks: Those that the script gave.
        kind: "test" or "predict", what is done with the batches.
    """
    hooks = (f"on_{kind}_batch_begin", f"on_{kind}_batch_end")
    idle = [vars(getattr(keras.callbacks, name)).get(hook) for name in _COUNT for hook in hooks]
    for callback in flatten(keras, callbacks):
        for hook in (getattr(callback, name, None) for name in hooks):
            if hook is not None and not keras.is_default(hook) and getattr(hook, "__func__", hook) not in idle:
                return type(callback).__name__
    return None


def _has_batch_hooks(keras: KerasVersion, callback: Any) -> bool:
    if isinstance(callback, (keras.callbacks.History, keras.callbacks.ProgbarLogger)):
        return False
    if type(callback).__module__.startswith("horovod.") and type(callback).__name__ == _BROADCASTS:
        return False
    for name, attribute in _IDLE_UNLESS.items():
        if type(callback) is getattr(keras.callbacks, name) and getattr(callback, attribute, None) == "epoch":
            return False
    hooks = [getattr(callback, name, None) for name in _BATCH_HOOKS]
    return any(hook is not None and not keras.is_default(hook) for hook in hooks)
