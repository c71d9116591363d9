"""Keras's `fit` and `train_on_batch`, distributed: Keras runs on, only what it calls for each step goes to the pool.

Keras calls `make_train_function()` once and `train_function(iterator)` for each step. We stand in for these two, and have
its iterator yield row numbers where the data are arrays. Callbacks, History, the progress bar, validation and everything
else is Keras, untouched.
"""

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from fdt.capture.keras.callbacks import Audience
from fdt.capture.keras.run import OnBatchRun, RemoteTrainFunction, Run
from fdt.capture.keras.verify import VerifiedRun
from fdt.capture.keras.version import KerasVersion
from fdt.capture.remote import RemoteVariables
from fdt.capture.rows import RowNumbers, Rows
from fdt.errors import FdtError, UnsupportedError
from fdt.patch import Patches
from fdt.report import say
from fdt.session import Session


class KerasFit:
    """The hooks. One `fit` at a time: Keras's own trainer is not made for more."""

    def __init__(self, session: Session, keras: KerasVersion, variables: RemoteVariables):
        self._session, self._keras, self._variables = session, keras, variables
        self._run: Run | None = None
        # Of the `fit` that runs.
        self._arguments: dict[str, Any] = {}
        # From the first `train_on_batch` after a `fit` to the next `fit`.
        self._on_batch: OnBatchRun | None = None
        # Whose `fit` or `train_on_batch` runs on this machine, because it trains nothing; and of which that has been said.
        self._here: Any = None
        self._said: set[str] = set()

    def install(self, patches: Patches, row_numbers: RowNumbers) -> None:
        """Puts the hooks in place.

        Args:
            patches: Takes them.
            row_numbers: Has been installed before the script made its first data set.
        """
        self._row_numbers = row_numbers
        patches.wrap(self._keras.trainer, "fit", self._fit)
        patches.wrap(self._keras.trainer, "make_train_function", self._make_train_function)
        patches.wrap(self._keras.trainer, "train_on_batch", self._train_on_batch)
        self._keras.hook_fit(patches, self)

    def awaiting_data(self) -> Run | None:
        """Returns the run whose training data Keras is about to read; None if what it reads is for something else."""
        return self._run if self._run is not None and self._run.batches is None else None

    def rows_of(self, dataset: Any) -> Rows | None:
        """Returns a data set as arrays and row numbers; None if it is to be streamed."""
        run = self.awaiting_data()
        # What makes one of several batches has to know how the data set would go on.
        if run is None or not run.sends_arrays or run.num_together > 1:
            return None
        return self._row_numbers.of(dataset, self._num_batches)

    def _num_batches(self, epoch: int) -> float:
        """Returns how many batches the `fit` will take.

        Args:
            epoch: How many its data make, gone through once.
        """
        epochs, steps = self._arguments["epochs"] - self._arguments["initial_epoch"], self._arguments["steps_per_epoch"]
        return float(epochs * (epoch if steps is None else steps))

    def close(self) -> None:
        """Ends what no `fit` has ended."""
        if self._on_batch is not None:
            on_batch, self._on_batch = self._on_batch, None
            on_batch.finish()

    def _fit(self, original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
        self._check_free("model.fit")
        arguments = inspect.signature(original).bind(model, *args, **kwargs)
        arguments.apply_defaults()
        check_model(self._keras, model)
        if self._trains_nothing(model):
            return self._run_here("fit", original, model, *args, **kwargs)
        self._renew()
        self.close()
        self._arguments = arguments.arguments
        self._run = self._start(model, Audience.of_fit(self._keras, model, self._arguments))
        try:
            history = original(model, *args, **kwargs)
            self._run.finish()
            return history
        except FdtError:
            raise
        except BaseException:
            # The script may catch it and go on: it then finds the weights as far as the training came.
            with contextlib.suppress(FdtError):
                self._run.finish()
            raise
        finally:
            # They hold the model.
            self._run, self._arguments = None, {}

    def _start(self, model: Any, audience: Audience) -> Run:
        verification = self._session.verification
        if verification is None:
            return Run(self._session, self._keras, model, audience)
        return VerifiedRun(self._session, self._keras, model, audience, verification)

    def _train_on_batch(self, original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
        self._check_free("model.train_on_batch")
        check_model(self._keras, model)
        if self._trains_nothing(model):
            return self._run_here("train_on_batch", original, model, *args, **kwargs)
        if self._session.verification is not None:
            raise UnsupportedError(
                "`fdt verify` compares the steps of model.fit; this script calls model.train_on_batch."
            )
        if self._on_batch is None:
            self._on_batch = OnBatchRun(self._session, self._keras, model, self._variables)
        self._run = self._on_batch
        self._run.model = model
        try:
            return original(model, *args, **kwargs)
        finally:
            self._run = None

    def _trains_nothing(self, model: Any) -> bool:
        """Whether a model's steps update no weight; Keras's train function, once made, stays until the model is compiled."""
        made = getattr(model, "train_function", None)
        return self._keras.trains_nothing(model) if made is None else not isinstance(made, RemoteTrainFunction)

    def _run_here(self, called: str, original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
        what = f"{type(model).__name__}.{called} of {model.name!r}"
        if what not in self._said:
            self._said.add(what)
            self._say_here(what)
        self._here = model
        try:
            return original(model, *args, **kwargs)
        finally:
            self._here = None

    def _say_here(self, what: str) -> None:
        say(f"{what} runs on this machine: the model has no trainable weights, so nothing is trained")

    def _renew(self) -> None:
        # What a job still has comes home; of one that has failed the script is told.
        self._variables.come_home()
        if self._session.renew():
            self._on_batch = None

    def _check_free(self, called: str) -> None:
        if self._run is not None:
            raise UnsupportedError(
                f"{called} was called while another model.fit was running (in a callback or another thread). Train one "
                "model after the other."
            )

    def _make_train_function(self, original: Callable[..., Any], model: Any, force: bool = False) -> Any:
        if self._here is model:
            return original(model, force)
        if self._run is None or self._run.model is not model:
            raise UnsupportedError(
                "make_train_function was called outside model.fit; a train_function made here would train on this "
                "machine alone. Call model.fit instead."
            )
        self._run.prepare(force)
        return model.train_function


def check_model(keras: KerasVersion, model: Any) -> None:
    """Refuses what cannot be captured.

    Raises:
        UnsupportedError: The model runs eagerly, is distributed already, or replaces the step that would be.
    """
    if not keras.is_compiled(model):
        return  # Keras itself says so.
    if tf.config.functions_run_eagerly():
        raise UnsupportedError(
            "tf.config.run_functions_eagerly is on: no function can be captured. Turn it off; a model may be compiled with "
            "run_eagerly=True."
        )
    strategy = keras.strategy(model)
    if strategy is not None:
        raise UnsupportedError(
            f"The model was built under {type(strategy).__name__}. Two ways of distributing cannot be "
            "combined: build the model without a strategy scope."
        )
    for name in ("make_train_function", "train_function"):
        if name in _own_attributes(keras, type(model)):
            raise UnsupportedError(
                f"{type(model).__name__} overrides {name}, which replaces the step that is distributed. Put the step into "
                "train_step(self, data)."
            )


def _own_attributes(keras: KerasVersion, model_class: type) -> set[str]:
    names: set[str] = set()
    for base in model_class.__mro__:
        if base is keras.trainer:
            break
        if not base.__module__.startswith("keras."):
            names |= set(vars(base))
    return names
