"""The holes of a step that is tried: gradients go nowhere, and two workers that run one after the other hear of each other."""

import enum
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from fdt.capture.step.shares import times
from fdt.holes import Holes, OpenHole
from fdt.messages import program_pb2


class IndivisibleError(Exception):
    """A step cannot be divided by rows; no error of the project's tree, since that is not the end of it."""


class RunningSum:
    """What was added up whenever the graph came by, be it in a loop.

    Attributes:
        tensor: What is added.
        handles: Of the resources behind it.
    """

    def __init__(self, tensor: tf.Tensor):
        """Adds a tensor of the graph that is being traced; its shape must be known."""
        self.tensor = tensor
        self._specs = tf.TensorSpec(tensor.shape, tensor.dtype), tf.TensorSpec([], tf.int64)
        with tf.init_scope():
            self.handles = [_resource(spec) for spec in self._specs]
        for handle, value in zip(self.handles, (tf.stop_gradient(tensor), tf.constant(1, tf.int64)), strict=True):
            tf.raw_ops.AssignAddVariableOp(resource=handle, value=value)

    def take(self) -> np.ndarray | None:
        """Returns the sum, None if the graph did not come by, and begins anew."""
        values = []
        for handle, spec in zip(self.handles, self._specs, strict=True):
            values.append(np.array(tf.raw_ops.ReadVariableOp(resource=handle, dtype=spec.dtype)))
            tf.raw_ops.AssignVariableOp(resource=handle, value=tf.zeros(spec.shape, spec.dtype))
        return values[0] if values[1] else None


def _resource(spec: tf.TensorSpec) -> tf.Tensor:
    # No tf.Variable: none must be made while a function is being traced, and assign_add is watched.
    handle = tf.raw_ops.VarHandleOp(dtype=spec.dtype, shape=spec.shape, shared_name=context.anonymous_name())
    tf.raw_ops.AssignVariableOp(
        resource=handle, value=tf.zeros(spec.shape if spec.shape.rank is not None else [], spec.dtype)
    )
    return handle


class Exchanged:
    """What passes a hole at which workers put something together; in a trial of two of them, one runs after the other.

    Attributes:
        handles: Of the resources behind it.
    """

    def __init__(self, tensor: tf.Tensor):
        """Takes note of a tensor of the graph that is being traced."""
        self._spec = tf.TensorSpec(None, tensor.dtype)
        with tf.init_scope():
            self.handles = self._own, self._others = _resource(self._spec), _resource(self._spec)
        tf.raw_ops.AssignVariableOp(resource=self._own, value=tensor)

    def others(self) -> tf.Tensor:
        """Returns, in the graph, what the other worker gave."""
        return tf.raw_ops.ReadVariableOp(resource=self._others, dtype=self._spec.dtype)

    def given(self) -> np.ndarray:
        """Returns what this worker gave."""
        return np.array(tf.raw_ops.ReadVariableOp(resource=self._own, dtype=self._spec.dtype))

    def give(self, value: np.ndarray) -> None:
        """Sets what the other worker gave."""
        tf.raw_ops.AssignVariableOp(resource=self._others, value=tf.constant(value, self._spec.dtype))


class Turn(enum.Enum):
    """Which worker a trial runs as."""

    # As many as the share says, all with the same rows.
    ALIKE = 0
    FIRST = 1
    SECOND = 2


class TrialHoles(Holes):
    """Holes of a trial; nothing is updated."""

    def __init__(self, share: tf.Tensor):
        super().__init__(share)
        # Of each hole, the sum of the gradients that passed it; whether they were weighed by the share.
        self.sums: list[list[RunningSum]] = []
        self.are_weighted: list[bool] = []
        self.exchanged: list[Exchanged] = []
        with tf.init_scope():
            self._turn = _resource(tf.TensorSpec([], tf.int32))

    def handles(self) -> set[int]:
        """Returns the ids of the resources behind them."""
        of_sums = [handle for hole in self.sums for total in hole for handle in total.handles]
        return {id(handle) for handle in (self._turn, *of_sums, *(h for e in self.exchanged for h in e.handles))}

    def begin(self, turn: Turn, others: Sequence[np.ndarray] = ()) -> None:
        """Has the step run as this worker; of two, with what the other one gave."""
        tf.raw_ops.AssignVariableOp(resource=self._turn, value=tf.constant(turn.value))
        for exchanged, value in zip(self.exchanged, others, strict=False):
            exchanged.give(value)

    def gradients(self, gradients: Sequence[Any], variables: Sequence[tf.Variable]) -> list[Any]:
        # The graph may know less of a gradient's shape than its variable does.
        pairs = list(zip(gradients, variables, strict=True))
        self.sums.append([RunningSum(tf.ensure_shape(tf.convert_to_tensor(g), v.shape)) for g, v in pairs])
        self.are_weighted.append(self.weighted)
        self.opened.append(OpenHole(program_pb2.Hole.KIND_GRADIENTS, "", (), ()))
        # Of no input: what follows gradients alone is then known to be the same for all workers.
        return [times(g, 0) if isinstance(g, tf.IndexedSlices) else tf.zeros(v.shape, g.dtype) for g, v in pairs]

    def sum(self, tensor: tf.Tensor) -> tf.Tensor:
        tensor = tf.stop_gradient(tensor)
        workers = tf.cast(self._workers(), tensor.dtype)
        alike = tensor * workers if tensor.dtype.is_integer else tensor / tf.cast(self.share, tensor.dtype)
        result = tf.where(self._is(Turn.ALIKE), alike, tensor + self._exchange(tensor).others())
        result.set_shape(tensor.shape)
        return result

    def largest(self, tensor: tf.Tensor) -> tf.Tensor:
        others = self._exchange(tensor).others()
        result = tf.where(self._is(Turn.ALIKE), tensor, tf.maximum(tensor, others))
        result.set_shape(tensor.shape)
        return result

    def rows(self, tensor: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        tensor = tf.stop_gradient(tensor)
        times = tf.concat([self._workers()[None], tf.ones([tf.rank(tensor) - 1], tf.int32)], 0)
        exchanged = self._exchange(tensor)
        result, first = tf.switch_case(
            tf.raw_ops.ReadVariableOp(resource=self._turn, dtype=tf.int32),
            [
                lambda: (tf.tile(tensor, times), 0),
                lambda: (tf.concat([tensor, _rows_like(exchanged.others(), tensor)], 0), 0),
                lambda: (
                    tf.concat([_rows_like(exchanged.others(), tensor), tensor], 0),
                    tf.shape(exchanged.others())[0],
                ),
            ],
        )
        result.set_shape(tf.TensorShape([None]).concatenate(tensor.shape[1:]))
        return result, first

    def needs_all_rows(self, reason: str) -> None:
        raise IndivisibleError(reason)

    def rate(self, rate: Any) -> tf.Tensor:
        return tf.convert_to_tensor(rate)

    def _exchange(self, tensor: tf.Tensor) -> Exchanged:
        self.exchanged.append(Exchanged(tensor))
        return self.exchanged[-1]

    def _is(self, turn: Turn) -> tf.Tensor:
        return tf.equal(tf.raw_ops.ReadVariableOp(resource=self._turn, dtype=tf.int32), turn.value)

    def _workers(self) -> tf.Tensor:
        return tf.cast(tf.round(1.0 / self.share), tf.int32)


def _rows_like(others: tf.Tensor, tensor: tf.Tensor) -> tf.Tensor:
    others.set_shape(tf.TensorShape([None]).concatenate(tensor.shape[1:]))
    return others
