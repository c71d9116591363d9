"""Keras's `fit` and `train_on_batch`, distributed: Keras runs on, only what it calls for each step goes to the pool.

Keras calls `make_train_function()` once and `train_function(iterator)` for each step. We stand in for these two, and have
its iterator yield row numbers where the data are arrays. Callbacks, History, the progress bar, validation and everything
else is Keras, untouched.
"""

import contextlib
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

from fdt.capture.keras.callbacks import Audience
from fdt.capture.keras.hooks import KerasHooks, check_model
from fdt.capture.keras.run import OnBatchRun, Run
from fdt.capture.keras.verify import VerifiedRun
from fdt.capture.keras.version import KerasVersion
from fdt.capture.remote import RemoteVariables
from fdt.client.report import say
from fdt.client.session import Session
from fdt.errors import FdtError, UnsupportedError


class KerasFit(KerasHooks[Run]):
    """The hooks. One thread trains at a time; a `fit` in whose callback another one is called waits for it."""

    def __init__(self, session: Session, keras: KerasVersion, variables: RemoteVariables):
        super().__init__(keras)
        self._session, self._variables = session, variables
        self._thread = 0
        # From the first `train_on_batch` after a `fit` to the next `fit`.
        self._on_batch: OnBatchRun | None = None

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
        with self._outer_suspended():
            self._renew()
            self.close()
            self._arguments = arguments.arguments
            self._run = run = self._start(model, Audience.of_fit(self._keras, model, self._arguments))
            try:
                history = original(model, *args, **kwargs)
                run.finish()
                return history
            except FdtError:
                raise
            except BaseException:
                # The script may catch it and go on: it then finds the weights as far as the training came.
                with contextlib.suppress(FdtError):
                    run.finish()
                raise

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
        with self._outer_suspended():
            self._run = self._on_batch
            self._run.model = model
            return original(model, *args, **kwargs)

    def _say_here(self, what: str) -> None:
        say(f"{what} runs on this machine: the model has no trainable weights, so nothing is trained")

    def _renew(self) -> None:
        # What a job still has comes home; of one that has failed the script is told.
        self._variables.come_home()
        if self._session.renew():
            self._on_batch = None

    @contextlib.contextmanager
    def _outer_suspended(self) -> Iterator[None]:
        """Within it another run may train; the `fit` in whose callback that is done goes on afterwards."""
        outer, arguments = self._run, self._arguments
        if outer is not None:
            outer.suspend()
        self._thread = threading.get_ident()
        try:
            yield
        finally:
            # What ran inside holds its model.
            self._run, self._arguments = outer, arguments
            if outer is not None:
                outer.resume()

    def _check_free(self, called: str) -> None:
        if self._run is not None and self._thread != threading.get_ident():
            raise UnsupportedError(
                f"{called} was called while another thread of the script trains a model. Train one model after the other, "
                "or in a callback of the other's fit."
            )
