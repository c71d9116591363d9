"""A `fit` whose first steps are made twice, on this machine and on the pool, from the same state."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.answers import Answer
from fdt.capture.keras.callbacks import Audience
from fdt.capture.keras.opening import own_views
from fdt.capture.keras.run import Run
from fdt.capture.keras.version import KerasVersion
from fdt.capture.refusals import in_place
from fdt.capture.step.variables import tf_variable
from fdt.packing import pack, unpack
from fdt.report import say
from fdt.session import Session
from fdt.v1 import job_pb2, program_pb2
from fdt.verification import Verification, nudged

_ALL = job_pb2.Drain.WHAT_ALL


class VerifiedRun(Run):
    """See `fdt.capture.keras.run.Run`: the script goes on with what this machine computed."""

    # So that every batch is here too.
    sends_arrays = False

    def __init__(
        self, session: Session, keras: KerasVersion, model: Any, audience: Audience, verification: Verification
    ):
        super().__init__(session, keras, model, audience)
        self._verification = verification
        self._local: Any = None
        # What the variables were after the last step: what is different by the next one, the script has changed.
        self._known: list[np.ndarray] | None = None
        # What they would have been, had the weights been off by their last digit before the first one.
        self._nudged: list[np.ndarray] = []

    def run_step(self, iterator: Any) -> Any:
        """Makes the step on the pool, then here; compares."""
        assert self.batches is not None
        step = self._find_step()
        traced = step.traced
        item = next(iter(iterator))
        changed, values = self._changed()
        self._job.assign(step.program, changed, values)
        self.batches.run(self._job, step.program, item)
        answer = self._job.request(step.program, _ALL).result()
        specs = [variable.tensor for variable in traced.program.variables]
        indices = list(answer.variables)
        theirs = dict(zip(indices, unpack(answer.values, [specs[i] for i in indices]), strict=True))
        with in_place():
            self._make_nudged(item, changed)
            logs = self._local(item)
        mine = self._values()
        losses = self._losses(logs, answer, theirs, mine)
        names = self._names()
        here, there = {names[i]: mine[i] for i in indices}, {names[i]: theirs[i] for i in indices}
        say(self._verification.add(losses, here, there, lambda: {names[i]: self._nudged[i] for i in indices}))
        self._known = mine
        self._steps += 1
        self._in_epoch += 1
        if self._verification.complete:
            # Nothing that the script could catch by accident: enough has been seen.
            raise SystemExit(0)
        return logs

    def _open(self) -> None:
        super()._open()
        assert self._step is not None
        self._local = tf.function(self.keras.converted(self.model.train_step), autograph=False, reduce_retracing=True)
        views = own_views(self._config, self._step.traced)
        self._verification.reasons |= dict.fromkeys(views)

    def _make_nudged(self, item: Any, changed: Sequence[int]) -> None:
        """Makes the step, here, from what the variables would be if the weights had been off by their last digit."""
        assert self._step is not None
        traced, before = self._step.traced, self._values()
        if not self._nudged:
            trained = [v.role == program_pb2.ROLE_TRAINABLE for v in traced.program.variables]
            self._nudged = [nudged(v) if is_trained else v for v, is_trained in zip(before, trained, strict=True)]
        else:
            for i in changed:
                self._nudged[i] = before[i]
        self._assign(self._nudged)
        self._local(item)
        self._nudged = self._values()
        self._assign(before)

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
        """Returns a name for each variable that says whose it is, and that no other has."""
        assert self._step is not None
        owners = [self.model, self.model.optimizer, *self.model.metrics]
        paths = {id(tf_variable(v)): getattr(v, "path", v.name.removesuffix(":0")) for o in owners for v in o.variables}
        names = [paths.get(id(v), v.name.removesuffix(":0")) for v in self._step.traced.variables]
        return [name if names.count(name) == 1 else f"{name} ({i})" for i, name in enumerate(names)]

    def _values(self) -> list[np.ndarray]:
        assert self._step is not None
        return [np.array(variable.numpy()) for variable in self._step.traced.variables]

    def _changed(self) -> tuple[list[int], Any]:
        """Returns what the script has changed since the last step; at first all."""
        assert self._step is not None
        if self._known is None:
            return self._step.state.changes()
        now, known = self._values(), self._known
        different = [i for i, value in enumerate(now) if value.tobytes() != known[i].tobytes()]
        return different, pack([now[i] for i in different])

    def _losses(
        self, logs: Any, answer: Answer, theirs: dict[int, np.ndarray], mine: list[np.ndarray]
    ) -> tuple[float, float] | None:
        """Returns both losses; the pool's comes from its metrics' state, which is put in place for that."""
        assert self._step is not None
        if not isinstance(logs, dict) or np.ndim(logs.get("loss", [0])) > 0:
            return None
        traced = self._step.traced
        metrics = [i for i, v in enumerate(traced.program.variables) if v.role == program_pb2.ROLE_METRIC]
        for i in metrics:
            traced.variables[i].assign(theirs[i])
        loss = float(np.asarray(traced.logs(answer.outputs)["loss"]))
        for i in metrics:
            traced.variables[i].assign(mine[i])
        return float(np.asarray(logs["loss"])), loss
