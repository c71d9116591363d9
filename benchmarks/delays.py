"""Trains a model as asynchronous workers would, with delays that are simulated.

The real parameter servers, with the order of pushes given by a clock that draws each worker's step times (gamma distributed, a
fifth of the mean as deviation), so that every rule sees the same data and the same delays.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

sys.path.insert(0, str(Path(__file__).parents[1]))

from fdt.base.config import RunConfig
from fdt.capture.keras.keras_3 import Keras3
from fdt.capture.keras.train_step import trace_train_step
from fdt.client.data import element_of
from nfdt.rules import Rule
from nfdt.servers import ParameterServers
from tests.helpers.rehearsal import lags_of, rehearse, timed

_STEP_DEVIATION = 0.2


def train(
    model: keras.Model,
    arrays: tuple[np.ndarray, np.ndarray],
    rows: Sequence[np.ndarray],
    rule: Rule,
    num_workers: int,
    seed: int,
) -> float:
    """Trains a compiled model in place; returns the mean delay.

    Args:
        model: Of Keras 3.
        arrays: Inputs [n, ...] and labels [n].
        rows: Row numbers of every step.
        rule: The update rule.
        num_workers: Whose delays are simulated; 1 for none.
        seed: Of their step times.
    """
    specs = tuple(tf.TensorSpec([None, *array.shape[1:]], array.dtype) for array in arrays)
    config = RunConfig("train.py", mode="async")
    step = trace_train_step(config, Keras3(), model, element_of(specs, keras.tree))
    servers = ParameterServers(step.program, rule, ["/CPU:0"], ["/CPU:0"], num_workers)
    servers.assign({i: v.numpy() for i, v in enumerate(step.variables)})
    x, y = map(tf.constant, arrays)
    pushes = rehearse(
        servers,
        lags_of(_schedule(num_workers, len(rows), seed)),
        lambda i: [tf.gather(x, rows[i]), tf.gather(y, rows[i])],
    )
    delays = [pushed[0].delay for pushed in pushes]
    for i, value in servers.read(range(len(step.variables))).items():
        step.variables[i].assign(value)
    return float(np.mean(delays))


def batches(num_rows: int, batch_size: int, epochs: int, seed: int) -> list[np.ndarray]:
    """Returns row numbers of every step, shuffled each epoch."""
    random, found = np.random.default_rng(seed), []
    for _ in range(epochs):
        order = random.permutation(num_rows)
        found += [order[i : i + batch_size] for i in range(0, num_rows, batch_size)]
    return found


def _schedule(num_workers: int, num_pushes: int, seed: int) -> Iterator[int]:
    """Yields who pushes next."""
    shape = 1 / _STEP_DEVIATION**2
    random = np.random.default_rng(seed)
    service = [lambda: float(random.gamma(shape, 1 / shape))] * num_workers
    return timed(service, num_pushes)
