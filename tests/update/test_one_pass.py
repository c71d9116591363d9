"""Parameters updated in one pass: each step gives what it gives as it was traced, whole and over simulated workers."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from fdt.base.native import library
from fdt.program.layout import Divided, shares
from fdt.program.step_program import LoadedProgram, load
from fdt.program.update.one_pass import OF_TABLES as OF_ROWS
from fdt.program.update.one_pass import OPERATION, in_one_pass
from tests.helpers.divided import DividedStep
from tests.helpers.formulas import OF_TABLES, OPTIMIZERS
from tests.helpers.programs import Traced, traced
from tests.helpers.thorough import some_of
from tests.servers.test_cut import WORDS, X, Y, dense_model, embedding_model

_STEPS = 3
_OF = keras.optimizers
# What they do cannot be told from the operations alone: roots that TensorFlow rewrites.
_ROUNDED = {name for name in OPTIMIZERS if name.startswith(("rmsprop", "adagrad", "adadelta"))}
# Around an update: clipping, moving averages, gradients of several batches, scaled losses.
_AROUND: dict[str, Callable[[], Any]] = {
    "clipnorm": lambda: _OF.Adam(0.01, clipnorm=0.1),
    "clipvalue": lambda: _OF.Adam(0.01, clipvalue=0.1),
    "global_clipnorm": lambda: _OF.Adam(0.01, global_clipnorm=0.1),
    "global_clipnorm_momentum": lambda: _OF.SGD(0.1, momentum=0.9, global_clipnorm=0.1),
    "ema": lambda: _OF.Adam(0.01, use_ema=True, ema_overwrite_frequency=2),
    "accumulation": lambda: _OF.Adam(0.01, gradient_accumulation_steps=2),
    "scaled": lambda: _OF.LossScaleOptimizer(_OF.Adam(0.01), initial_scale=8.0),
    "schedule": lambda: _OF.AdamW(_OF.schedules.CosineDecay(0.1, 5), weight_decay=0.01),
    "amsgrad": lambda: _OF.Adam(0.01, amsgrad=True),
    "ftrl": lambda: _OF.Ftrl(0.1),
    "adafactor": lambda: _OF.Adafactor(0.01),
    "lamb": lambda: _OF.Lamb(0.01),
    "muon": lambda: _OF.Muon(0.01),
}
# In branches, or with an update that reads more than its own entries.
_AS_TRACED = {"accumulation", "scaled", "amsgrad", "ftrl", "adafactor", "lamb"}


def _updates(loaded: LoadedProgram, *kinds: str) -> list[str]:
    return [node.name for node in loaded.meta_graph.graph_def.node if node.op in (kinds or (OPERATION, OF_ROWS))]


def _begun(step: Traced, source: Any) -> LoadedProgram:
    loaded = load(source)
    for variable, own in zip(loaded.variables, step.variables, strict=True):
        variable.assign(own)
    return loaded


def _trained(loaded: LoadedProgram, run: Callable[..., Any], data: Sequence[np.ndarray]) -> list[np.ndarray]:
    outputs = [run(tf.constant(1.0), *map(tf.constant, data)) for _ in range(_STEPS)]
    return [np.asarray(each) for each in tf.nest.flatten([outputs, [v.value() for v in loaded.variables]])]


# Of optimizers that differ in terms alone, the one with most.
_DENSE = (
    "nesterov_decayed",
    "adam",
    "adamw",
    "rmsprop_momentum_centered",
    "adadelta",
    "adamax",
    "nadam",
    "lion",
    *_AROUND,
)
_TABLES = ("sgd", "nesterov_decayed", "adam", "rmsprop_momentum_centered", "lion", "global_clipnorm", "ema", "muon")
_SOME = [
    *((name, "dense") for name in _DENSE),
    *((name, "table") for name in _TABLES),
    *((name, "rows") for name in ("nesterov_decayed", "adamw", "adamax", "lion", "global_clipnorm")),
]


@pytest.mark.parametrize(
    ("name", "kind"), some_of(itertools.product([*OPTIMIZERS, *_AROUND], ["dense", "table", "rows"]), _SOME)
)
def test_a_step_gives_what_it_gives_as_it_was_traced(name: str, kind: str) -> None:
    keras.utils.set_random_seed(1)
    optimizer = (OPTIMIZERS | _AROUND)[name]()
    model, data = (dense_model(optimizer), (X, Y)) if kind == "dense" else (embedding_model(optimizer), (WORDS, Y))
    step = traced(model, data)
    table_bytes = 0 if kind == "rows" else None
    plain, rewritten = _begun(step, step.program), _begun(step, in_one_pass(step.program, table_bytes=table_bytes))
    assert (len(_updates(rewritten)) == 0) == (name in _AS_TRACED), _updates(rewritten)
    expected, found = (_trained(each, each.step, data) for each in (plain, rewritten))
    if name in _ROUNDED or (kind != "dense" and name in ("nesterov_decayed", "global_clipnorm_momentum")):
        # TensorFlow adds up rows and terms of a decayed parameter in another order once it has rewritten the step.
        for one, other in zip(expected, found, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    else:
        assert all(np.array_equal(*pair) for pair in zip(expected, found, strict=True))
    exact = load(in_one_pass(step.program, exact=True))
    assert name not in _ROUNDED or not _updates(exact)
    if kind == "rows" and name in OF_TABLES:
        assert _updates(rewritten, OF_ROWS), "the table's gradient is never summed up"


_DIVIDED = ("adamw", "nesterov", "rmsprop_momentum_centered", "global_clipnorm")
_SOME_DIVIDED = [
    *(("adamw", kind, num_workers) for kind, num_workers in (("dense", 5), ("table", 2), ("rows", 5))),
    ("nesterov", "rows", 2),
    ("global_clipnorm", "dense", 2),
]


@pytest.mark.parametrize(
    ("name", "kind", "num_workers"),
    some_of(itertools.product(_DIVIDED, ["dense", "table", "rows"], [1, 2, 5]), _SOME_DIVIDED),
)
def test_workers_update_their_parts(name: str, kind: str, num_workers: int) -> None:
    keras.utils.set_random_seed(1)
    optimizer = (OPTIMIZERS | _AROUND)[name]()
    model, data = (dense_model(optimizer), (X, Y)) if kind == "dense" else (embedding_model(optimizer), (WORDS, Y))
    step = traced(model, data)
    table_bytes = 0 if kind == "rows" else None
    plain, rewritten = _begun(step, step.program), _begun(step, in_one_pass(step.program, table_bytes=table_bytes))
    expected = _trained(plain, plain.step, data)
    of_state = [v for v in rewritten.variables if v.shape.rank == 2 and v.shape[0] >= num_workers]
    marks = {
        function: [(rewritten.variables[g.variable], g.sparse) for g in hole.gradients]
        for function, hole in rewritten.holes.items()
    }
    rows = Divided(0, shares(len(data[0]), num_workers))
    divided = DividedStep(rewritten.step, {1: rows, 2: rows}, num_workers, of_state=of_state, marks=marks)
    assert all(isinstance(divided.divided.layouts[divided._num_arguments + place], Divided) for place in divided.parts)
    outputs = [divided.function(tf.constant(1.0), *map(tf.constant, data)) for _ in range(_STEPS)]
    divided.put_together()
    found = [np.asarray(each) for each in tf.nest.flatten([outputs, [v.value() for v in rewritten.variables]])]
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


class _ReadsBetween(keras.Model):
    """Reads a weight before its update, between two updates, and after them."""

    def __init__(self, optimizer: Any) -> None:
        super().__init__(name="reads_between")
        self.w = self.add_weight(shape=(3,), initializer="ones", name="w")
        self.shown = self.add_weight(shape=(3,), initializer="zeros", trainable=False, name="shown")
        self.compile(optimizer)

    def call(self, x: Any) -> Any:
        return tf.reduce_sum(x * self.w, 1)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - y[:, 0]) ** 2)
        gradient = tape.gradient(loss, self.w.value)
        before = tf.norm(self.w)
        self.optimizer.apply([gradient], [self.w])
        between = tf.norm(self.w)
        self.shown.assign(self.w)
        self.w.assign(0.9 * self.w)
        return {"before": before, "between": between, "after": tf.norm(self.w), "loss": loss}


def test_what_reads_a_parameter_around_its_update_reads_what_it_read() -> None:
    keras.utils.set_random_seed(1)
    model = _ReadsBetween(keras.optimizers.Adam(0.1))
    model.optimizer.build([model.w])
    x = np.random.default_rng(0).normal(size=(6, 3)).astype("float32")
    data = (x, np.ones((6, 1), "float32"))
    step = traced(model, data)
    plain, rewritten = _begun(step, step.program), _begun(step, in_one_pass(step.program))
    expected, found = (_trained(each, each.step, data) for each in (plain, rewritten))
    assert all(np.array_equal(*pair) for pair in zip(expected, found, strict=True))


def test_a_gradient_of_another_size_is_refused() -> None:
    variable = tf.Variable([1.0, 2.0])
    with pytest.raises(tf.errors.InvalidArgumentError, match="A gradient has 3 entries, its variable 2"):
        library("fdt.program.update").ops.fdt_update_variables(
            gradients=[tf.ones([3])], scalars=[tf.constant(0.1)], variables=[variable.handle], formula="sgd"
        )
    with pytest.raises(tf.errors.InvalidArgumentError, match="There is no formula nothing"):
        library("fdt.program.update").ops.fdt_update_variables(
            gradients=[tf.ones([2])], scalars=[tf.constant(0.1)], variables=[variable.handle], formula="nothing"
        )
    read = variable.read_value()
    library("fdt.program.update").ops.fdt_update_variables(
        gradients=[tf.ones([2])], scalars=[tf.constant(0.5)], variables=[variable.handle], formula="sgd"
    )
    assert (read.numpy().tolist(), variable.numpy().tolist()) == ([1.0, 2.0], [0.5, 1.5])
