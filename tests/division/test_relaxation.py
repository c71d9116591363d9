"""What is relaxed on request: BatchNormalization over a worker's own rows, random numbers of its own."""

import itertools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from fdt.base.config import RunConfig
from fdt.base.patch import Patches
from fdt.base.relaxation import BATCH_NORM, OWN_ROWS, RANDOM
from fdt.capture.keras.imported import hook_imported
from fdt.capture.keras.keras_3_step import StepHooks
from fdt.capture.step.observer import StepObserver
from fdt.division import own_rows
from fdt.program.holes import Holes, open_holes
from fdt.program.layout import Divided, shares
from tests.helpers.divided import DividedStep, largest_difference
from tests.helpers.thorough import some_of

_ROWS = 15
_CHANNELS = 4


def traced(step: Callable[[tf.Tensor], Any], shape: tuple[int, ...]) -> Any:
    """Traces a step as a client of a relaxed job does."""
    seen, patches = StepObserver(RunConfig("train.py", options={"relax": BATCH_NORM}), hook_imported), Patches()
    StepHooks(seen).install(patches)

    def named(x: tf.Tensor) -> Any:
        with open_holes(Holes(tf.constant(1.0))):
            return step(x)

    try:
        return tf.function(named, autograph=False).get_concrete_function(tf.TensorSpec((_ROWS, *shape)))
    finally:
        patches.undo()


def divided(concrete: Any, workers: int, in_part: list[tf.Variable], *relaxed: str) -> DividedStep:
    return DividedStep(concrete, {0: Divided(0, shares(_ROWS, workers))}, workers, in_part, frozenset(relaxed))


class Normalising:
    """A layer, its gradients, and what they are of."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.layer = keras.layers.BatchNormalization(momentum=0.8)
        self.layer.build((None, *shape))
        self.layer.gamma.assign(np.linspace(0.5, 2, _CHANNELS))
        self.layer.moving_mean.assign(np.linspace(-1, 1, _CHANNELS))
        self.weights = np.random.default_rng(2).normal(size=(_ROWS, *shape)).astype("float32")

    def step(self, x: tf.Tensor, first: int = 0) -> list[tf.Tensor]:
        """Returns the layer's output, and the gradients of a sum over rows by what it was given, and by its weights."""
        weights = self.weights[first : first + x.shape[0]]
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = self.layer(x, training=True)
            value = tf.reduce_sum(weights * tf.sin(y))
        gradients = tape.gradient(value, [x, self.layer.gamma.value, self.layer.beta.value])
        return [y, *map(tf.convert_to_tensor, gradients)]


class Fused(Normalising):
    """As Keras 2 normalises images: one operation, which keeps the moving statistics, too."""

    def step(self, x: tf.Tensor, first: int = 0) -> list[tf.Tensor]:
        weights, layer = self.weights[first : first + x.shape[0]], self.layer

        def named(rows: tf.Tensor) -> tf.Tensor:
            y, mean, variance = tf.compat.v1.nn.fused_batch_norm(
                rows, layer.gamma.value, layer.beta.value, layer.moving_mean.value, layer.moving_variance.value,
                epsilon=1e-3, exponential_avg_factor=0.2,
            )  # fmt: skip
            layer.moving_mean.value.assign(mean)
            layer.moving_variance.value.assign(variance)
            return y

        named.__name__ = OWN_ROWS
        inner = tf.function(named, autograph=False).get_concrete_function(tf.TensorSpec(x.shape))
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = inner(x)
            value = tf.reduce_sum(weights * tf.sin(y))
        gradients = tape.gradient(value, [x, layer.gamma.value, layer.beta.value])
        return [y, *map(tf.convert_to_tensor, gradients)]


_KINDS: dict[str, tuple[type[Normalising], tuple[int, ...]]] = {
    "dense": (Normalising, (_CHANNELS,)),
    "convolutional": (Normalising, (3, 2, _CHANNELS)),
    "fused": (Fused, (3, 2, _CHANNELS)),
}
_STATISTICS = ("in part", "whole")


# Of 16 workers one has no row.
@pytest.mark.parametrize(
    ("kind", "statistics", "workers"),
    some_of(
        itertools.product(_KINDS, _STATISTICS, [2, 4, 16]),
        [*itertools.product(_KINDS, _STATISTICS, [4]), ("dense", "in part", 16)],
    ),
)
def test_each_worker_normalises_its_own_rows(kind: str, statistics: str, workers: int) -> None:
    (normalising, shape), in_part = _KINDS[kind], statistics == "in part"
    made = normalising(shape)
    moving = [made.layer.moving_mean.value, made.layer.moving_variance.value]
    before = [v.numpy() for v in moving]
    concrete = traced(made.step, shape)
    x = np.random.default_rng(1).normal(size=(_ROWS, *shape)).astype("float32") + np.arange(_ROWS).reshape(
        -1, *[1] * len(shape)
    )
    step = divided(concrete, workers, moving if in_part else [], BATCH_NORM)
    found = [value.numpy() for value in step.function(tf.constant(x, tf.float32))]
    parts = list(step.parts.values())
    after = [np.sum([part.numpy() for part in each], 0) for each in parts] if in_part else [v.numpy() for v in moving]

    expected: list[list[np.ndarray]] = []
    told = []
    start = 0
    for size in shares(_ROWS, workers):
        for variable, value in zip(moving, before, strict=True):
            variable.assign(value)
        if size:
            expected.append([v.numpy() for v in made.step(tf.constant(x[start : start + size], tf.float32), start)])
            told.append([v.numpy() * size / _ROWS for v in moving])
        start += size
    y, by_x, by_gamma, by_beta = zip(*expected, strict=True)
    wanted = [np.concatenate(y), np.concatenate(by_x), np.sum(by_gamma, 0), np.sum(by_beta, 0)]
    # A worker with a single row has gradients that are zero but for rounding.
    assert max(float(np.max(np.abs(a - b))) for a, b in zip(wanted, found, strict=True)) < 1e-3
    assert largest_difference([np.sum(each, 0) for each in zip(*told, strict=True)], after) < 1e-5
    assert step.account is not None
    # The outputs, and moving statistics where every worker has them whole: of the moments nothing.
    of_statistics = 0 if in_part else 2
    assert step.account.exchanges == {"gather": 2, "sum": 2 + of_statistics}


def test_moving_statistics_are_found_and_their_mean_is_exact() -> None:
    made = Normalising((_CHANNELS,))
    concrete = traced(made.step, (_CHANNELS,))
    names = own_rows.moved(concrete.graph, frozenset({BATCH_NORM}))
    by_name = {inner.name: outer for outer, inner in concrete.graph.captures}
    assert {id(by_name[name]) for name in names} == {
        id(v.value.handle) for v in (made.layer.moving_mean, made.layer.moving_variance)
    }
    assert not own_rows.moved(concrete.graph, frozenset({RANDOM}))


def test_without_the_wish_it_is_exact() -> None:
    made = Normalising((_CHANNELS,))
    concrete = traced(made.step, (_CHANNELS,))
    x = tf.random.stateless_normal((_ROWS, _CHANNELS), [1, 2]) * 3 + tf.range(_ROWS, dtype=tf.float32)[:, None]
    found = divided(concrete, 3, []).function(x)
    assert largest_difference([v.numpy() for v in made.step(x)], [v.numpy() for v in found]) < 1e-5


def test_what_differs_is_averaged_where_it_leaves_the_layer() -> None:
    """What every worker has made of its own rows is one number for all outside: the mean, weighted by rows."""
    kept = tf.Variable(tf.zeros(_CHANNELS))

    def named(x: tf.Tensor) -> list[tf.Tensor]:
        middle = tf.exp(tf.reduce_mean(x, 0))
        kept.assign(middle)
        return [x - middle, middle]

    named.__name__ = OWN_ROWS
    spec = tf.TensorSpec((_ROWS, _CHANNELS))
    inner = tf.function(named, autograph=False).get_concrete_function(spec)
    concrete = tf.function(lambda x: [inner(x)[1] * 2.0, inner(x)[0]], autograph=False).get_concrete_function(spec)
    x = tf.random.stateless_normal((_ROWS, _CHANNELS), [1, 2])
    found = divided(concrete, 2, [], BATCH_NORM).function(x)[0].numpy()
    wanted = (8 * np.exp(np.mean(x[:8], 0)) + 7 * np.exp(np.mean(x[8:], 0))) / 15
    np.testing.assert_allclose(found, 2 * wanted, rtol=1e-5)
    np.testing.assert_allclose(kept.numpy(), wanted, rtol=1e-5)


def draws(kind: str) -> Callable[[tf.Tensor], Any]:
    generator, seed = tf.random.Generator.from_seed(3), tf.Variable([3, 4])
    return {
        "stateless": lambda x: x + tf.random.stateless_normal(tf.shape(x), seed),
        "whole numbers": lambda x: (
            x + tf.cast(tf.random.stateless_uniform(tf.shape(x), seed, 0, 9999, tf.int32), tf.float32)
        ),
        "older": lambda x: x + tf.raw_ops.StatelessRandomUniform(shape=tf.shape(x), seed=seed),
        "seeded": lambda x: x + tf.random.normal(tf.shape(x), seed=5),
        "generator": lambda x: x + generator.normal(tf.shape(x)),
    }[kind]


@pytest.mark.parametrize("kind", ["stateless", "whole numbers", "older", "seeded", "generator"])
def test_workers_draw_numbers_of_their_own(kind: str) -> None:
    concrete = tf.function(draws(kind)).get_concrete_function(tf.TensorSpec((8, 5)))
    step = DividedStep(concrete, {0: Divided(0, (4, 4))}, 2, relaxed=frozenset({RANDOM}))
    found = step.function(tf.zeros((8, 5)))[0].numpy()
    assert len(np.unique(found)) == found.size
    assert drawn(step) == {4}
    assert drawn(DividedStep(concrete, {0: Divided(0, (4, 4))}, 2)) == {8}


def drawn(step: DividedStep) -> set[int]:
    """Returns how many rows of numbers are drawn at once."""
    nodes = {node.name: node for node in step.divided.library[-1].node_def}
    drawing = [node for node in nodes.values() if "Random" in node.op or "Stateful" in node.op]
    shapes = [nodes[name.partition(":")[0]].attr["value"].tensor for node in drawing for name in node.input]
    return {int(tf.make_ndarray(shape)[0]) for shape in shapes if list(shape.tensor_shape.dim) and shape.dtype == 3}
