"""Runs the calls of `train_on_batch` on the pool."""

from typing import Any

import numpy as np
import tensorflow as tf

from fdt.capture.keras.callbacks import Audience
from fdt.capture.keras.run import Run, numbers_of
from fdt.capture.keras.train_function import RemoteTrainFunction
from fdt.capture.keras.version import KerasVersion
from fdt.capture.remote import RemoteVariables
from fdt.client.data import Batches, StreamedBatches
from fdt.client.job import Job
from fdt.client.session import Session


class OnBatchRun(Run):
    """The calls of `train_on_batch` of one or several models: each call returns metrics; variables stay on the pool."""

    def __init__(self, session: Session, keras: KerasVersion, model: Any, variables: RemoteVariables):
        super().__init__(session, keras, model, Audience.of_script(), variables)

    def _leave_out(self) -> None:
        self._variables.come_home()
        self._begin_account()

    def prepare(self, force: bool) -> None:
        """Leaves the tracing to the first batch, which determines the form of the step."""
        if force or not isinstance(self.model.train_function, RemoteTrainFunction):
            self.model.train_function = RemoteTrainFunction()
        self.model.train_function.run = self

    def run_step(self, iterator: Any) -> Any:
        """Replaces one call of Keras's train_function."""
        with self._variables.told():
            job = self._variables.job()
            if job is not self._job:
                self.finish()
                self._job = job
                self._begin_account()
            self.batches, item = batches_like(self.keras, next(iter(iterator)))
            if not self.batches.takes(item):
                self.batches.element = self.batches.element.in_groups()
            super().prepare(force=False)
            self._find_step()
            self._check_unchanged()
            self._logs = self._made(job, item)
        self._session.count(1, self._leave_out)
        return self._logs

    def _made(self, job: Job, item: Any) -> Any:
        """Runs a step on the pool and returns its logs."""
        assert self._step is not None and self.batches is not None
        with self._variables.busy():
            self._variables.enter(job, self._step)
            self._run_item(item)
            self._variables.ran(self._step)
            logs = self._step.traced.logs(self._variables.metrics_of(job, self._step).outputs)
            self._write_summaries()
        job.show(lambda: numbers_of(logs))
        return logs

    def finish(self) -> None:
        """Fetches all values from the pool and records the account of this training."""
        self._variables.come_home()
        if self._step is not None:
            self._record()


def batches_like(keras: KerasVersion, item: Any) -> tuple[Batches, Any]:
    """Returns a description of batches like `item`, and `item` with all its leaves arrays or tensors."""
    item = keras.tree.map_structure(_as_array, item)
    batches = StreamedBatches(keras.tree.map_structure(_spec_of, item), keras.tree)
    # The next batch may have another size.
    batches.batch_size = None
    return batches, item


def _as_array(leaf: Any) -> Any:
    return leaf if leaf is None or tf.is_tensor(leaf) else np.asarray(leaf)


def _spec_of(leaf: Any) -> Any:
    if leaf is None or not isinstance(leaf, np.ndarray):
        return None if leaf is None else tf.type_spec_from_value(leaf)
    return tf.TensorSpec(leaf.shape, tf.string if leaf.dtype.kind in "OSU" else tf.dtypes.as_dtype(leaf.dtype))
