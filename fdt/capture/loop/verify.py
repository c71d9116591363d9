"""Runs the first steps of the script's own loops twice, on this machine and on the pool, from the same state."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.capture.keras.opening import apart
from fdt.capture.loop.pending import resolved
from fdt.capture.loop.run import LoopRun, LoopStep
from fdt.capture.loop.tracing import flat_outputs
from fdt.capture.refusals import in_place
from fdt.capture.remote import RemoteVariables
from fdt.capture.step.draws import replayed
from fdt.capture.thread_output import held_back
from fdt.client.report import say
from fdt.client.session import Session
from fdt.client.verification import MadeTwice, Verification, nudged
from fdt.program.packing import as_array
from fdt.v1 import program_pb2


class VerifiedLoop(LoopRun):
    """See `fdt.capture.loop.calls.Steps`: the script goes on with what this machine computed."""

    def __init__(self, session: Session, variables: RemoteVariables, verification: Verification):
        super().__init__(session, variables)
        self._verification = verification
        # By id, each function and a clone that is traced separately: both draw the same random numbers. Keeping the function
        # keeps its id unique.
        self._again: dict[int, tuple[Any, Any]] = {}

    def run(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tf.Tensor]:
        """Makes a step on the pool, then here, from the same variables; compares."""
        with self._variables.busy():
            step, _ = self._step_for(function, args, kwargs)
            variables = step.traced.variables
            before = _values(variables)
            on_pool = [resolved(output) for output in super().run(function, args, kwargs)]
            self._variables.come_home()
            theirs = _values(variables)
            with in_place():
                again = self._nudged(step, before, function, args, kwargs)
                _assign(variables, before)
                outputs = flat_outputs(function(*args, **kwargs))
            step.traced.follow(dict(enumerate(theirs)))
            mine = _values(variables)
        # The pool still holds its own results: before the next step all values are compared with ours, and sent.
        self._variables.changed_at_home(step)
        self._verification.reasons |= dict.fromkeys(apart(self._session.config, step.traced))
        names = _names(step)

        def named(values: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
            states = set(map(id, step.traced.random_states))
            return {n: v for n, v, of in zip(names, values, variables, strict=True) if id(of) not in states}

        trained = [name for name, is_trained in zip(names, _trained(step), strict=True) if is_trained]
        made = MadeTwice(named(before), named(mine), named(theirs), trained)
        say(self._verification.add(_losses(outputs, on_pool), made, lambda: named(again)))
        if self._verification.complete:
            # Enough steps are compared. SystemExit, so that the script does not catch it by accident.
            raise SystemExit(0)
        return outputs

    def _nudged(
        self, step: LoopStep, before: Sequence[np.ndarray], function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[np.ndarray]:
        """Returns the variables after the step on this machine, from weights that are off by their last digit."""
        variables = step.traced.variables
        pairs = zip(before, _trained(step), strict=True)
        _assign(variables, [nudged(value) if is_trained else value for value, is_trained in pairs])
        _, again = self._again.setdefault(id(function), (function, function._clone(None)))
        # This call traces the clone; the script's Python has already run once, in TensorFlow's own trace.
        with replayed(), held_back():
            again(*args, **kwargs)
        return _values(variables)

    def close(self) -> None:
        """Writes no account: the time was spent on comparing."""


def _values(variables: Sequence[tf.Variable]) -> list[np.ndarray]:
    return [as_array(variable).copy() for variable in variables]


def _assign(variables: Sequence[tf.Variable], values: Sequence[np.ndarray]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _trained(step: LoopStep) -> list[bool]:
    return [variable.role == program_pb2.ROLE_TRAINABLE for variable in step.traced.program.variables]


def _names(step: LoopStep) -> list[str]:
    names = [v.name.removesuffix(":0") for v in step.traced.variables]
    return [name if names.count(name) == 1 else f"{name} ({i})" for i, name in enumerate(names)]


def _losses(outputs: Sequence[tf.Tensor], on_pool: Sequence[tf.Tensor]) -> tuple[float, float] | None:
    """Returns the step's first scalar output from both runs; None if it has none."""
    for mine, theirs in zip(outputs, on_pool, strict=True):
        if mine.dtype.is_floating and not mine.shape.rank:
            return float(mine), float(theirs)
    return None
