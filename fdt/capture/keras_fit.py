"""Keras's `fit` and `train_on_batch`, distributed: Keras runs on, only what it calls for each step goes to the pool.

Keras calls `make_train_function()` once and `train_function(iterator)` for each step. We stand in for these two, and for
the epoch iterator, which then yields row numbers instead of data. Callbacks, History, the progress bar, validation and
everything else is Keras, untouched.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from keras.src.backend.tensorflow import trainer as tf_trainer

from fdt.capture.keras_callbacks import Audience
from fdt.capture.keras_run import OnBatchRun, Run
from fdt.capture.keras_verify import VerifiedRun
from fdt.capture.patch import Patches
from fdt.errors import FdtError, UnsupportedError
from fdt.session import Session


class KerasFit:
    """The hooks. One `fit` at a time: Keras's own trainer is not made for more."""

    def __init__(self, session: Session):
        self._session = session
        self._run: Run | None = None
        # From the first `train_on_batch` after a `fit` to the next `fit`.
        self._on_batch: OnBatchRun | None = None

    def install(self, patches: Patches) -> None:
        """Puts the hooks in place."""
        trainer = tf_trainer.TensorFlowTrainer
        patches.wrap(trainer, "fit", self._fit)
        patches.wrap(trainer, "make_train_function", self._make_train_function)
        patches.wrap(trainer, "train_on_batch", self._train_on_batch)
        patches.set(tf_trainer, "TFEpochIterator", self._epoch_iterator_class())

    def close(self) -> None:
        """Ends what no `fit` has ended."""
        if self._on_batch is not None:
            on_batch, self._on_batch = self._on_batch, None
            on_batch.finish()

    def _fit(self, original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
        self._check_free("model.fit")
        arguments = inspect.signature(original).bind(model, *args, **kwargs)
        arguments.apply_defaults()
        check_model(model)
        self.close()
        self._run = self._start(model, Audience.of_fit(model, arguments.arguments))
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
            self._run = None

    def _start(self, model: Any, audience: Audience) -> Run:
        verification = self._session.verification
        if verification is None:
            return Run(self._session, model, audience)
        return VerifiedRun(self._session, model, audience, verification)

    def _train_on_batch(self, original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
        self._check_free("model.train_on_batch")
        check_model(model)
        if self._session.verification is not None:
            raise UnsupportedError(
                "`fdt verify` compares the steps of model.fit; this script calls model.train_on_batch."
            )
        if self._on_batch is None:
            self._on_batch = OnBatchRun(self._session, model)
        self._run = self._on_batch
        self._run.model = model
        try:
            return original(model, *args, **kwargs)
        finally:
            self._run = None

    def _check_free(self, called: str) -> None:
        if self._run is not None:
            raise UnsupportedError(
                f"{called} was called while another model.fit was running (in a callback or another thread). Train one "
                "model after the other."
            )

    def _make_train_function(self, original: Callable[..., Any], model: Any, force: bool = False) -> Any:
        if self._run is None or self._run.model is not model:
            raise UnsupportedError(
                "make_train_function was called outside model.fit; a train_function made here would train on this "
                "machine alone. Call model.fit instead."
            )
        self._run.prepare(force)
        return model.train_function

    def _epoch_iterator_class(self) -> type:
        hooks = self

        class EpochIterator(tf_trainer.TFEpochIterator):  # type: ignore[misc]
            """Keras's, but the one that trains yields row numbers and drains the job at the end of an epoch."""

            _fdt_run: Run | None = None

            def __init__(self, *args: Any, **kwargs: Any):
                run = hooks._run
                if run is not None and run.batches is None:
                    self._fdt_run = run
                super().__init__(*args, **kwargs)

            @property
            def data_adapter(self) -> Any:
                return self._fdt_adapter

            @data_adapter.setter
            def data_adapter(self, adapter: Any) -> None:
                self._fdt_adapter = adapter if self._fdt_run is None else self._fdt_run.take(adapter)

            @contextlib.contextmanager
            def catch_stop_iteration(self) -> Iterator[None]:
                with super().catch_stop_iteration():
                    yield
                if self._fdt_run is not None:
                    self._fdt_run.end_epoch()

        return EpochIterator


def check_model(model: Any) -> None:
    """Refuses what cannot be captured.

    Raises:
        UnsupportedError: The model runs eagerly, is distributed already, or replaces the step that would be.
    """
    if not model.compiled:
        return  # Keras itself says so.
    if model.run_eagerly:
        raise UnsupportedError(
            "The model is compiled with run_eagerly=True (or keras.config.run_functions_eagerly is on): an eager step "
            "cannot be captured. Compile it with run_eagerly=False."
        )
    if model._distribute_strategy is not None:
        raise UnsupportedError(
            f"The model was built under {type(model._distribute_strategy).__name__}. Two ways of distributing cannot be "
            "combined: build the model without a strategy scope."
        )
    for name in ("make_train_function", "train_function"):
        if name in _own_attributes(type(model)):
            raise UnsupportedError(
                f"{type(model).__name__} overrides {name}, which replaces the step that is distributed. Put the step into "
                "train_step(self, data)."
            )


def _own_attributes(model_class: type) -> set[str]:
    names: set[str] = set()
    for base in model_class.__mro__:
        if base is tf_trainer.TensorFlowTrainer:
            break
        if not base.__module__.startswith("keras."):
            names |= set(vars(base))
    return names
