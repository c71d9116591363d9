"""Programs for tests of what happens behind the client: small models, traced as `fdt run` traces them."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from fdt.base.config import RunConfig
from fdt.capture.keras.imported import hook_imported
from fdt.capture.keras.keras_3 import Keras3
from fdt.capture.keras.train_step import trace_train_step
from fdt.capture.step.observer import StepObserver
from fdt.capture.step.tracing import StepTrace
from fdt.client.data import element_of
from fdt.program.element import Element
from fdt.program.packing import Pieces
from fdt.v1 import program_pb2
from nfdt.rules import Rule
from nfdt.servers import ParameterServers


class Given(keras.Model):
    """Its gradient is the batch: what a worker pushes is what a test gives it."""

    def __init__(self, weights: Sequence[np.ndarray]):
        super().__init__()
        self.parameters = [
            self.add_weight(shape=w.shape, dtype=w.dtype.name, initializer="zeros", name=f"w{i}")
            for i, w in enumerate(weights)
        ]
        for parameter, value in zip(self.parameters, weights, strict=True):
            parameter.assign(value)

    def train_step(self, data: Any) -> dict[str, Any]:
        gradients = [g[0] for g in (data if isinstance(data, tuple) else (data,))]
        self.optimizer.apply(gradients, self.parameters)
        return {"size": tf.add_n([tf.cast(tf.reduce_sum(g), tf.float64) for g in gradients])}


class Quadratic(keras.Model):
    """f(w) = h/2 |w|^2, whatever the batch."""

    def __init__(self, start: np.ndarray, curvature: float = 1.0):
        super().__init__()
        self.w = self.add_weight(shape=start.shape, dtype=start.dtype.name, initializer="zeros", name="w")
        self.w.assign(start)
        self._curvature = curvature

    def train_step(self, data: Any) -> dict[str, Any]:
        self.optimizer.apply([self._curvature * tf.convert_to_tensor(self.w)], [self.w])
        return {}


@dataclasses.dataclass
class Traced:
    """A program, and the script's own variables in its order."""

    program: program_pb2.StepProgram
    variables: list[tf.Variable]

    def values(self) -> dict[int, np.ndarray]:
        return {i: np.array(v.numpy()) for i, v in enumerate(self.variables)}

    def index(self, variable: keras.Variable) -> int:
        return next(i for i, v in enumerate(self.variables) if v is variable.value)


def step_trace(config: RunConfig) -> StepTrace:
    """Returns a trace of a step that knows nothing of a model beforehand."""
    return StepTrace(config, StepObserver(config, hook_imported))


def element_like(example: Any) -> Element:
    """Returns the element of batches like this one: an array, or nested arrays."""
    return element_of(keras.tree.map_structure(lambda a: tf.TensorSpec(a.shape, a.dtype), example), keras.tree)


def traced(model: keras.Model, example: Any, mode: str = "sync") -> Traced:
    """Traces a compiled model's own step.

    Args:
        model: Compiled.
        example: A batch: array, or tuple of arrays.
        mode: Of the run.
    """
    result = trace_train_step(RunConfig("train.py", mode=mode), Keras3(), model, element_like(example))
    return Traced(result.program, result.variables)


def servers(step: Traced, rule: Rule, num_workers: int = 2, num_shards: int = 1) -> ParameterServers:
    """Returns parameter servers that hold what the script has; all on one device, with one replica."""
    result = ParameterServers(step.program, rule, ["/CPU:0"] * num_shards, ["/CPU:0"], num_workers)
    result.assign(step.values())
    return result


def state(result: ParameterServers, step: Traced) -> Mapping[int, np.ndarray]:
    """Returns everything that the servers keep."""
    found = result.read(range(len(step.variables)))
    shapes = [variable.tensor.shape for variable in step.program.variables]
    return {
        i: np.concatenate([*value.made]).reshape(shapes[i]) if isinstance(value, Pieces) else value
        for i, value in found.items()
    }
