"""Runs the first steps of a `fit` twice, on this machine and on the pool, from the same state."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.capture.keras.callbacks import Audience
from fdt.capture.keras.opening import apart
from fdt.capture.keras.run import Run
from fdt.capture.keras.version import KerasVersion
from fdt.capture.refusals import in_place
from fdt.capture.remote import RemoteVariables
from fdt.capture.step.variables import tf_variable, tf_variables
from fdt.client.answers import Answer
from fdt.client.data import StreamedBatches
from fdt.client.report import say
from fdt.client.session import Session
from fdt.client.verification import MadeTwice, Verification, nudged
from fdt.program.packing import as_array, joined, unpack_state
from fdt.v1 import job_pb2, program_pb2

_ALL = job_pb2.Drain.WHAT_ALL
_METRIC = program_pb2.ROLE_METRIC


class VerifiedRun(Run):
    """See `fdt.capture.keras.run.Run`: the script goes on with what this machine computed."""

    # Data are streamed, files too (`admitted`), so that this machine has every batch.
    sends_arrays = False

    def __init__(
        self,
        session: Session,
        keras: KerasVersion,
        model: Any,
        audience: Audience,
        variables: RemoteVariables,
        verification: Verification,
    ):
        super().__init__(session, keras, model, audience, variables)
        self._verification, self.admitted = verification, None
        # Plain Keras's step, and a second trace of it for weights off by their last digit: both draw the same numbers.
        self._local: Any = None
        self._again: Any = None
        # This machine's variables after the last step: a metric that differs at the next step was reset by the script.
        self._known: list[np.ndarray] | None = None

    def run_step(self, iterator: Any) -> Any:
        """Makes the step on the pool, then here, from the same variables; compares."""
        assert self.batches is not None
        self._find_step()
        item = next(iter(iterator))
        before = self._values()
        theirs, answer = self._on_pool(item, before)
        with in_place():
            again = self._nudged(item, before)
            logs = self._local(item)
        assert self._step is not None
        self._step.traced.follow(theirs)
        mine = self._known = self._values()
        losses = self._losses(logs, answer, theirs, mine)
        names, roles = self._names(), self._roles()
        trained = {names[i] for i in theirs if roles[i] == program_pb2.ROLE_TRAINABLE}
        made = MadeTwice(self._seen(before, theirs), self._seen(mine, theirs), self._seen(theirs, theirs), trained)
        say(self._verification.add(losses, made, lambda: self._seen(again, theirs)))
        self._steps += 1
        self._in_epoch += 1
        if self._verification.complete:
            # Enough steps are compared. SystemExit, so that the script does not catch it by accident.
            raise SystemExit(0)
        return logs

    def _on_pool(self, item: Any, before: Sequence[np.ndarray]) -> tuple[dict[int, np.ndarray], Answer]:
        """Runs a step on the pool; returns the variables after it, by place, and the answer that held them."""
        assert self._step is not None and self.batches is not None
        program, known, roles = self._step.program, self._known, self._roles()
        # Metric states on the pool may be in other units; see `_seen`.
        sent = [
            place
            for place, value in enumerate(before)
            if known is None or roles[place] != _METRIC or value.tobytes() != known[place].tobytes()
        ]
        self._job.assign(program, sent, [before[place] for place in sent])
        self.batches.run(self._job, program, item)
        answer = self._job.request(program, _ALL).result()
        specs = [variable.tensor for variable in self._step.traced.program.variables]
        values = unpack_state(answer.state, answer.contents.__getitem__, specs)
        return {i: joined(pieces) for i, pieces in values}, answer

    def _open(self) -> None:
        super()._open()
        assert self._step is not None and isinstance(self.batches, StreamedBatches)
        with in_place():
            self._local, self._again = (
                self.keras.step_in_place(self.model).get_concrete_function(self.batches.specs) for _ in range(2)
            )
        self._verification.reasons |= dict.fromkeys(apart(self._config, self._step.traced))

    def _nudged(self, item: Any, before: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Returns the variables after the step on this machine, from weights that are off by their last digit."""
        trained = [role == program_pb2.ROLE_TRAINABLE for role in self._roles()]
        self._assign(
            [nudged(value) if of_trained else value for value, of_trained in zip(before, trained, strict=True)]
        )
        self._again(item)
        after = self._values()
        self._assign(before)
        return after

    def _seen(self, values: Any, places: Iterable[int]) -> dict[str, np.ndarray]:
        """Returns variables by name, and metrics' results in place of their states.

        The states may be in other units: a mean counts rows if their number is known when it is traced, otherwise steps.

        Args:
            values: Values of variables, by place in the step.
            places: The places for which there are values.
        """
        assert self._step is not None
        variables, now, names = self._step.traced.variables, self._values(), self._names()
        metrics = self.keras.metrics(self.model)
        states = {id(variable) for metric in metrics for variable in tf_variables(metric.variables)}
        unseen = states | set(map(id, self._step.traced.random_states))
        seen = {names[i]: values[i] for i in places if id(variables[i]) not in unseen}
        self._assign([values[i] if i in places and id(variables[i]) in states else now[i] for i in range(len(now))])
        for number, metric in enumerate(metrics):
            for part, result in enumerate(tf.nest.flatten(metric.result())):
                seen[f"result of {metric.name} ({number}.{part})"] = np.asarray(result)
        self._assign(now)
        return seen

    def _roles(self) -> list["program_pb2.Role"]:
        assert self._step is not None
        return [variable.role for variable in self._step.traced.program.variables]

    def _assign(self, values: Sequence[np.ndarray]) -> None:
        assert self._step is not None
        for variable, value in zip(self._step.traced.variables, values, strict=True):
            variable.assign(value)

    def end_epoch(self) -> None:
        """Nothing to do: everything was computed here."""
        self._epochs += 1
        self._in_epoch = 0

    def _record(self) -> None:
        """Writes no account: the time was spent on comparing."""

    def _names(self) -> list[str]:
        """Returns a unique name for each variable, by its owner's path where it has one."""
        assert self._step is not None
        owners = [self.model, self.model.optimizer, *self.model.metrics]
        paths = {id(tf_variable(v)): getattr(v, "path", v.name.removesuffix(":0")) for o in owners for v in o.variables}
        names = [paths.get(id(v), v.name.removesuffix(":0")) for v in self._step.traced.variables]
        return [name if names.count(name) == 1 else f"{name} ({i})" for i, name in enumerate(names)]

    def _values(self) -> list[np.ndarray]:
        assert self._step is not None
        return [as_array(variable).copy() for variable in self._step.traced.variables]

    def _losses(
        self, logs: Any, answer: Answer, theirs: dict[int, np.ndarray], mine: list[np.ndarray]
    ) -> tuple[float, float] | None:
        """Returns this machine's loss and the pool's; for the latter, assigns the pool's metric states for the moment."""
        assert self._step is not None
        if not isinstance(logs, dict) or np.ndim(logs.get("loss", [0])) > 0:
            return None
        traced = self._step.traced
        metrics = [i for i, v in enumerate(traced.program.variables) if v.role == _METRIC]
        for i in metrics:
            traced.variables[i].assign(theirs[i])
        loss = float(np.asarray(traced.logs(answer.outputs)["loss"]))
        for i in metrics:
            traced.variables[i].assign(mine[i])
        return float(np.asarray(logs["loss"])), loss
