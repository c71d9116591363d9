"""Has the pool make the validations of a `fit`, and what the script evaluates and predicts after it, where it can.

Keras's `fit` makes an iterator over the validation data once and calls `evaluate` on it after epochs; `evaluate` calls
`make_test_function()`, then `test_function(iterator)` for each step; `predict` does so with `predict_function`. The hooks
replace these where the workers may make the step (docs/decisions/0104); the loop, callbacks and logs are Keras's own.
"""

import contextlib
import dataclasses
import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fdt.base.patch import Patches
from fdt.capture.keras.callbacks import watches
from fdt.capture.keras.evaluation import Evaluation, Prediction, ScriptedEvaluation
from fdt.capture.keras.evaluation_function import RemoteFunction
from fdt.capture.keras.hooks import own_attributes
from fdt.capture.keras.run import Run
from fdt.capture.keras.train_function import RemoteTrainFunction
from fdt.capture.keras.version import KerasVersion
from fdt.capture.remote import RemoteVariables
from fdt.client.report import say
from fdt.client.session import Session
from fdt.errors import FdtError, StepError

# What a model's class must not define itself, by the function that makes the steps: it is Keras's loop that is known to read
# metrics only.
_OF_KERAS = {
    "test_function": ("evaluate", "make_test_function", "test_function", "get_metrics_result", "reset_metrics"),
    "predict_function": ("predict", "make_predict_function", "predict_function"),
}
# How callbacks call it.
_KINDS = {"test_function": "test", "predict_function": "predict"}


def validates(arguments: Mapping[str, Any]) -> bool:
    """Returns whether a `fit` validates.

    Args:
        arguments: Those of `fit`.
    """
    return arguments["validation_data"] is not None or bool(arguments["validation_split"])


def line_here(reason: str | None) -> str:
    """Returns the opening line of a validation on this machine."""
    return f"validation runs on this machine: {reason}"


def stays_here(
    keras: KerasVersion, model: Any, arguments: Mapping[str, Any], function: str = "test_function"
) -> str | None:
    """Returns why steps that train nothing are made on this machine, as far as model and callbacks tell; None if nothing keeps
    them here.

    Args:
        keras: The model's generation of Keras.
        model: The model.
        arguments: Those of `fit`, `evaluate` or `predict`.
        function: The model's function that makes the steps.
    """
    defined = own_attributes(keras, type(model)) | vars(model).keys() - {function}
    overridden = next((name for name in _OF_KERAS[function] if name in defined), None)
    if overridden is not None:
        return f"{type(model).__name__} overrides {overridden}"
    if model.run_eagerly:
        return "the model is compiled with run_eagerly=True"
    watching = watches(keras, arguments["callbacks"], _KINDS[function])
    return None if watching is None else f"{watching} is called for each of its batches"


@dataclasses.dataclass
class _Fit:
    """A running `fit`.

    Attributes:
        run: Its training.
        arguments: Its arguments.
        stays: Why it validates on this machine; None if nothing is known to keep it there.
        thread: The thread that called it.
        evaluation: Its validations, once Keras reads their data.
    """

    run: Run
    arguments: Mapping[str, Any]
    stays: str | None
    thread: int
    evaluation: Evaluation | None = None


class _StaysHereError(Exception):
    """The workers cannot make the step of an `evaluate` or `predict` whose row numbers Keras is about to read."""


@dataclasses.dataclass
class _Asked:
    """A running `evaluate` or `predict` of the script's.

    Attributes:
        run: The finished training of the model, whose weights the workers have.
        evaluation: What makes its steps.
        thread: The thread that called it.
        lent: Gives the workers back at its end.
    """

    run: Run
    evaluation: ScriptedEvaluation
    thread: int
    lent: contextlib.ExitStack


class Validation:
    """The hooks of `evaluate`, `predict`, their forms for one batch, and what makes their functions."""

    def __init__(self, session: Session, keras: KerasVersion, variables: RemoteVariables):
        """
        Args:
            session: The session whose job trains.
            keras: The generation of Keras.
            variables: The variables of all steps.
        """
        self._session, self._keras, self._variables = session, keras, variables
        self._fit: _Fit | None = None
        self._asked: _Asked | None = None
        # How many calls that run on this machine and read data are going on, one in the other.
        self._own_calls = 0

    def install(self, patches: Patches) -> None:
        """Puts the hooks in place."""
        trainer: Any = self._keras.trainer
        self._keras_make = {name: getattr(trainer, f"make_{name}") for name in _OF_KERAS}
        for name in _OF_KERAS:
            patches.wrap(trainer, f"make_{name}", functools.partial(self._make, name))
        patches.wrap(trainer, "evaluate", self._evaluate)
        patches.wrap(trainer, "predict", functools.partial(self._on_pool_or_here, Prediction))
        patches.wrap(trainer, "test_on_batch", self._of_script)
        patches.wrap(trainer, "predict_on_batch", self._of_script)

    def stays_here(self, model: Any, arguments: Mapping[str, Any], function: str = "test_function") -> str | None:
        """See the function `stays_here`; here as far as that is known before the data are read."""
        if self._session.verification is not None:
            return "`fdt verify` compares training steps"
        return stays_here(self._keras, model, arguments, function)

    @contextlib.contextmanager
    def of_fit(self, run: Run, arguments: Mapping[str, Any], stays: str | None) -> Iterator[None]:
        """Has the pool make the validations of a `fit` that runs within the context.

        Args:
            run: Its training.
            arguments: Its arguments.
            stays: See `stays_here`.
        """
        outer, self._fit = self._fit, _Fit(run, arguments, stays, threading.get_ident())
        outer_calls, self._own_calls = self._own_calls, 0
        try:
            yield
        finally:
            self._fit, self._own_calls = outer, outer_calls

    def awaiting_data(self) -> Evaluation | None:
        """Returns the validations whose data Keras is about to read; None if it reads for something else."""
        asked = self._asked
        if asked is not None and asked.thread == threading.get_ident() and not self._own_calls:
            is_read = asked.evaluation.batches is not None or asked.evaluation.stays is not None
            return None if is_read else asked.evaluation
        fit = self._current()
        if fit is None or fit.stays is not None or self._own_calls:
            return None
        if fit.evaluation is None:
            run = fit.run
            fit.evaluation = Evaluation(self._session.config, self._keras, run.model, fit.arguments, run)
        is_read = fit.evaluation.batches is not None or fit.evaluation.stays is not None
        return None if is_read else fit.evaluation

    def _current(self) -> _Fit | None:
        """Returns the `fit` that runs in this thread."""
        fit = self._fit
        return fit if fit is not None and fit.thread == threading.get_ident() else None

    def _evaluate(self, original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
        fit = self._current()
        if fit is None or fit.run.model is not model or not kwargs.get("_use_cached_eval_dataset"):
            return self._on_pool_or_here(ScriptedEvaluation, original, model, *args, **kwargs)
        evaluation = fit.evaluation
        if evaluation is not None and self._is_made(evaluation, model):
            self._session.opening([evaluation.line()])
            with evaluation.running(fit.run, self._function_of(evaluation, model)):
                return original(model, *args, **kwargs)
        if evaluation is not None:
            fit.stays = evaluation.stays
            self._keras.read_validation_here(model)
            fit.evaluation = None
        self._session.opening([line_here(fit.stays)])
        return original(model, *args, **kwargs)

    def _on_pool_or_here(
        self, kind: type[ScriptedEvaluation], original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any
    ) -> Any:
        given = inspect.signature(original).bind(model, *args, **kwargs)
        given.apply_defaults()
        run = self._lender(model, given.arguments, kind.function)
        if run is not None:
            evaluation = kind(self._session.config, self._keras, model, given.arguments, run)
            try:
                with contextlib.ExitStack() as lent:
                    self._asked = _Asked(run, evaluation, threading.get_ident(), lent)
                    return evaluation.returned(original(model, *args, **kwargs))
            except _StaysHereError:
                pass
            except StepError:
                raise
            except FdtError as error:
                say(f"{kind.what} begins again, on this machine, which has the weights: {error}")
            finally:
                self._asked = None
        return self._of_script(original, model, *args, **kwargs)

    def _lender(self, model: Any, arguments: Mapping[str, Any], function: str) -> Run | None:
        """Returns the finished training whose weights the workers have, for steps that they may make; else None.

        Args:
            model: The model.
            arguments: Those of `evaluate` or `predict`.
            function: The model's function that makes the steps.
        """
        made = getattr(model, "train_function", None)
        run = made.run if isinstance(made, RemoteTrainFunction) else None
        is_free = self._fit is None and self._asked is None and not self._own_calls
        if not is_free or type(run) is not Run or not run.may_lend:
            return None
        return run if self.stays_here(model, arguments, function) is None else None

    def _begun(self, asked: _Asked) -> Any:
        """Begins an `evaluate` or `predict` whose data are row numbers now; returns the model's function.

        Raises:
            _StaysHereError: The workers cannot make its step.
        """
        evaluation, function = asked.evaluation, self._function_of(asked.evaluation, asked.run.model)
        if not self._is_made(evaluation, asked.run.model):
            raise _StaysHereError(evaluation.stays)
        self._session.opening([evaluation.line()])
        asked.lent.enter_context(evaluation.running(asked.run, function))
        return function

    def _of_script(self, original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
        """Runs a call of the script's own on this machine."""
        with contextlib.ExitStack() as here:
            here.enter_context(self.reading_here())
            # A callback may call it while the pool makes steps.
            for made in (getattr(model, name, None) for name in _OF_KERAS):
                if isinstance(made, RemoteFunction):
                    here.enter_context(made.here())
            return original(model, *args, **kwargs)

    @contextlib.contextmanager
    def reading_here(self) -> Iterator[None]:
        """Data that Keras reads within the context are for a call that runs on this machine."""
        self._own_calls += 1
        try:
            yield
        finally:
            self._own_calls -= 1

    def _is_made(self, evaluation: Evaluation, model: Any) -> bool:
        """Returns whether the workers make the steps of an evaluation, which are traced the first time."""
        # The trace looks at variables, not at their values.
        with self._variables.busy():
            return evaluation.trace(self._function_of(evaluation, model))

    def _function_of(self, evaluation: Evaluation, model: Any) -> RemoteFunction:
        name = evaluation.function
        if not isinstance(getattr(model, name), RemoteFunction):
            setattr(model, name, RemoteFunction(model, name, self._keras_make[name]))
        made: RemoteFunction = getattr(model, name)
        return made

    def _make(self, name: str, original: Callable[..., Any], model: Any, force: bool = False) -> Any:
        asked = self._asked
        is_asked = asked is not None and asked.run.model is model and asked.evaluation.function == name
        if asked is not None and is_asked and asked.evaluation.batches is not None:
            return self._begun(asked)
        made = getattr(model, name, None)
        if force or not isinstance(made, RemoteFunction):
            return original(model, force)
        if made.on_pool is None:
            made.make_here()
        return made
