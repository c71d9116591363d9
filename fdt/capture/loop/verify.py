"""Loops of the script's own whose first steps are made twice, on this machine and on the pool, from the same state."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.capture.keras.opening import own_views
from fdt.capture.loop.pending import resolved
from fdt.capture.loop.run import LoopRun, LoopStep
from fdt.capture.loop.tracing import flat_outputs
from fdt.capture.refusals import in_place
from fdt.capture.remote import RemoteVariables
from fdt.packing import as_array
from fdt.report import say
from fdt.session import Session
from fdt.v1 import program_pb2
from fdt.verification import Verification, nudged


class VerifiedLoop(LoopRun):
    """See `fdt.capture.loop.calls.Steps`: the script goes on with what this machine computed."""

    def __init__(self, session: Session, variables: RemoteVariables, verification: Verification):
        super().__init__(session, variables)
        self._verification = verification

    def run(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tf.Tensor]:
        """Makes a step on the pool, then here; compares."""
        with self._variables.paused():
            step, _ = self._step_for(function, args, kwargs)
            variables = step.traced.variables
            before = _values(variables)
            on_pool = [resolved(output) for output in super().run(function, args, kwargs)]
            self._variables.come_home()
            theirs = _values(variables)
            for variable, value in zip(variables, before, strict=True):
                variable.assign(value)
            with in_place():
                outputs = flat_outputs(function(*args, **kwargs))
            mine = _values(variables)
        # The pool holds its own outcome: all is compared with ours, and sent, before the next step.
        self._variables.changed_at_home(step)
        self._verification.reasons |= dict.fromkeys(own_views(self._session.config, step.traced))
        roles = [variable.role for variable in step.traced.program.variables]
        names = dict(enumerate(_names(step)))

        def again() -> dict[str, np.ndarray]:
            with self._variables.paused(), in_place():
                for i, value in enumerate(before):
                    variables[i].assign(nudged(value) if roles[i] == program_pb2.ROLE_TRAINABLE else value)
                function(*args, **kwargs)
                own = _values(variables)
                for variable, value in zip(variables, mine, strict=True):
                    variable.assign(value)
            return {name: own[i] for i, name in names.items()}

        here, there = ({name: values[i] for i, name in names.items()} for values in (mine, theirs))
        say(self._verification.add(_losses(outputs, on_pool), here, there, again))
        if self._verification.complete:
            # Nothing that the script could catch by accident: enough has been seen.
            raise SystemExit(0)
        return outputs

    def close(self) -> None:
        """Writes no account: the time was spent on comparing."""


def _values(variables: Sequence[tf.Variable]) -> list[np.ndarray]:
    return [as_array(variable).copy() for variable in variables]


def _names(step: LoopStep) -> list[str]:
    names = [v.name.removesuffix(":0") for v in step.traced.variables]
    return [name if names.count(name) == 1 else f"{name} ({i})" for i, name in enumerate(names)]


def _losses(outputs: Sequence[tf.Tensor], on_pool: Sequence[tf.Tensor]) -> tuple[float, float] | None:
    """Returns the first number that the step returns, of both."""
    for mine, theirs in zip(outputs, on_pool, strict=True):
        if mine.dtype.is_floating and not mine.shape.rank:
            return float(mine), float(theirs)
    return None
