"""A small net for steps that are hard to divide, and the list of these steps."""

import dataclasses
import os
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

FEATURES, CLASSES = 6, 4
# A process may ask for more: from 4,096 on the weights are large enough for workers to hold them in parts.
_NARROW = 8
HIDDEN = int(os.environ.get("HARD_NET_HIDDEN", _NARROW))


class Net:
    """A small net and what steps keep beside it."""

    def __init__(self) -> None:
        random = np.random.default_rng(7)

        def normal(*shape: int) -> tf.Variable:
            return tf.Variable(random.normal(size=shape).astype("float32") * 0.5)

        self.w1, self.w2 = normal(FEATURES, HIDDEN), normal(HIDDEN, CLASSES)
        self.w2.assign(self.w2 * (_NARROW / HIDDEN) ** 0.5)
        self.b1 = tf.Variable(tf.zeros(HIDDEN))
        self.table, self.codes = normal(10, FEATURES), normal(5, HIDDEN)
        self.teacher = tf.Variable(self.w1)
        self.queue = tf.Variable(tf.zeros((30, HIDDEN)))
        self.rate, self.count = tf.Variable(0.1), tf.Variable(0, dtype=tf.int64)
        self.kept, self.scale = tf.Variable(tf.zeros((FEATURES, HIDDEN))), tf.Variable(tf.ones(CLASSES))

    @property
    def variables(self) -> list[tf.Variable]:
        return list(vars(self).values())

    def hidden(self, x: tf.Tensor) -> tf.Tensor:
        return tf.nn.tanh(x @ self.w1 + self.b1)

    def logits(self, x: tf.Tensor) -> tf.Tensor:
        return self.hidden(x) @ self.w2

    def losses(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return tf.nn.sparse_softmax_cross_entropy_with_logits(y, self.logits(x))

    def descend(self, loss: tf.Tensor, tape: tf.GradientTape) -> tf.Tensor:
        weights = [self.w1, self.b1, self.w2]
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            if gradient is not None:
                weight.assign_sub(self.rate * gradient)
        return loss


Step = Callable[[Net, tf.Tensor, tf.Tensor], tf.Tensor]


@dataclasses.dataclass(frozen=True)
class HardStep:
    """A step, and which of its operations are known to be computed whole on divided inputs."""

    step: Step
    whole: Mapping[str, int]


STEPS: dict[str, HardStep] = {}


def hard(**whole: int) -> Callable[[Step], Step]:
    """Registers a step; says what of it is computed whole."""

    def register(step: Step) -> Step:
        STEPS[step.__name__] = HardStep(step, whole)
        return step

    return register


def loss(**whole: int) -> Callable[[Step], Step]:
    """Registers the step that descends along a loss."""

    def register(function: Step) -> Step:
        def step(net: Net, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                value = function(net, x, y)
            return net.descend(value, tape)

        STEPS[function.__name__] = HardStep(step, whole)
        return function

    return register
