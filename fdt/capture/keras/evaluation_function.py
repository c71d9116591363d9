"""Replaces `model.test_function` or `model.predict_function` once the pool has made its steps."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from fdt.capture.remote import RemoteStep
from fdt.capture.step.traced_step import TracedStep
from fdt.errors import UnsupportedError
from fdt.program.element import Element


class RemoteFunction:
    """A function of a model: Keras's own, except while the pool makes its steps. It lives until the next compile.

    Attributes:
        on_pool: Makes a step while the pool makes them; None at other times.
    """

    def __init__(self, model: Any, name: str, make: Callable[[Any, bool], Any]) -> None:
        """
        Args:
            model: The model, which may have Keras's function already.
            name: The model's attribute that holds the function.
            make: What Keras makes it by: make_test_function or make_predict_function.
        """
        self.on_pool: Callable[[Any], Any] | None = None
        self._model, self._name, self._make = model, name, make
        self._keras_own = getattr(model, name)
        self._steps: dict[Any, RemoteStep] = {}
        # Why the workers cannot make a step.
        self._refused: dict[Any, str] = {}

    def known(self, element: Element, rows: int | None) -> RemoteStep | None:
        """Returns the step for batches of this form, if it has been traced.

        Args:
            element: What a batch looks like.
            rows: Rows of every batch; None if they differ.
        """
        step = self._steps.get(element.key())
        is_of_one_size = step is not None and step.traced.program.one_size
        return self._steps.get((element.key(), rows)) if is_of_one_size else step

    def step(self, element: Element, rows: int | None, trace: Callable[[Element], TracedStep]) -> RemoteStep:
        """Returns the step for batches of this form, traced at the first call; see `known`.

        Raises:
            UnsupportedError: The workers cannot make it.
        """
        key = element.key()
        if key in self._refused:
            raise UnsupportedError(self._refused[key])
        step = self.known(element, rows)
        if step is None:
            try:
                step = RemoteStep(trace(element))
            except UnsupportedError as error:
                self._refused[key] = str(error)
                raise
            self._steps.setdefault(key, step)
            self._steps[key, rows] = step
        return step

    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        """Makes steps on this machine within the context."""
        outer, self.on_pool = self.on_pool, None
        try:
            yield
        finally:
            self.on_pool = outer

    def make_here(self) -> None:
        """Makes Keras's own function, unless there is one."""
        if self._keras_own is None:
            self._make(self._model, True)
            self._keras_own = getattr(self._model, self._name)
            setattr(self._model, self._name, self)

    def __call__(self, data: Any) -> Any:
        """Makes one step (or `steps_per_execution` of them) on what Keras gives it; returns what Keras's function returns."""
        if self.on_pool is not None:
            return self.on_pool(data)
        self.make_here()
        return self._keras_own(data)
