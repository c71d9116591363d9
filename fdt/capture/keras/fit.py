"""Distributes Keras's `fit` and `train_on_batch`: Keras's own loop runs here, and each step that it calls runs on the pool.

Keras calls `make_train_function()` once and `train_function(iterator)` for each step. The hooks replace these two, and make
its iterator yield row numbers where the data are arrays. Callbacks, History, the progress bar, validation and everything
else are Keras's own; which steps of validation the pool makes: see `fdt.capture.keras.validation`.
"""

import contextlib
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

from fdt.base.patch import Patches
from fdt.capture.keras.callbacks import Audience
from fdt.capture.keras.evaluation import Evaluation
from fdt.capture.keras.hooks import KerasHooks, check_model
from fdt.capture.keras.on_batch import OnBatchRun
from fdt.capture.keras.run import Run
from fdt.capture.keras.validation import Validation
from fdt.capture.keras.verify import VerifiedRun
from fdt.capture.keras.version import KerasVersion, Reader
from fdt.capture.remote import RemoteVariables
from fdt.capture.rows import RowNumbers
from fdt.client.report import say
from fdt.client.session import Session
from fdt.errors import FdtError, UnsupportedError


class KerasFit(KerasHooks[Run]):
    """The hooks that train. One thread trains at a time; a `fit` called in another fit's callback suspends the outer one."""

    def __init__(self, session: Session, keras: KerasVersion, variables: RemoteVariables):
        super().__init__(keras)
        self._session, self._variables = session, variables
        self._validation = Validation(session, keras, variables)
        self._thread = 0
        # Set from the first `train_on_batch` after a `fit` to the next `fit`.
        self._on_batch: OnBatchRun | None = None

    def install(self, patches: Patches, row_numbers: RowNumbers) -> None:
        self._validation.install(patches)
        super().install(patches, row_numbers)

    def awaiting_data(self) -> Reader | None:
        return super().awaiting_data() or self._validation.awaiting_data()

    def _num_batches(self, epoch: int) -> float:
        reader = self.awaiting_data()
        return reader.num_batches(epoch) if isinstance(reader, Evaluation) else super()._num_batches(epoch)

    def close(self) -> None:
        """Ends the run of `train_on_batch` calls, if no `fit` has ended it."""
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
        with self._outer_suspended():
            self._renew()
            self.close()
            self._arguments = arguments.arguments
            stays = self._validation.stays_here(model, self._arguments)
            audience = Audience.of_fit(self._keras, self._arguments)
            self._run = run = self._start(model, audience)
            try:
                with self._validation.of_fit(run, self._arguments, stays):
                    history = original(model, *args, **kwargs)
                run.finish()
                return history
            except FdtError:
                raise
            except BaseException:
                # The script may catch the error and continue: it then finds the weights of the last step made.
                with contextlib.suppress(FdtError):
                    run.finish()
                raise

    def _start(self, model: Any, audience: Audience) -> Run:
        verification = self._session.verification
        if verification is None:
            return Run(self._session, self._keras, model, audience, self._variables)
        return VerifiedRun(self._session, self._keras, model, audience, self._variables, verification)

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
        with self._outer_suspended():
            self._run = self._on_batch
            self._run.model = model
            return original(model, *args, **kwargs)

    def _run_here(self, called: str, original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
        with self._validation.reading_here():
            return super()._run_here(called, original, model, *args, **kwargs)

    def _say_here(self, what: str) -> None:
        say(f"{what} runs on this machine: the model has no trainable weights, so nothing is trained")

    def _renew(self) -> None:
        # Fetches the values that a job still has; raises the error of a failed job.
        self._variables.come_home()
        if self._session.renew():
            self._on_batch = None

    @contextlib.contextmanager
    def _outer_suspended(self) -> Iterator[None]:
        """Suspends the outer `fit` while another run trains in one of its callbacks; resumes it afterwards."""
        outer, arguments = self._run, self._arguments
        if outer is not None:
            outer.suspend()
        self._thread = threading.get_ident()
        try:
            yield
        finally:
            # Drops the inner run, which keeps its model alive.
            self._run, self._arguments = outer, arguments
            if outer is not None:
                outer.resume()

    def _check_free(self, called: str) -> None:
        if self._run is not None and self._thread != threading.get_ident():
            raise UnsupportedError(
                f"{called} was called while another thread of the script trains a model. Train one model after the other, "
                "or in a callback of the other's fit."
            )
