"""A step is cut in two: nothing is lost, nothing done twice, and what is updated alike is found."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from fdt.errors import UsageError
from fdt.program.update.cut import cut
from fdt.program.update.parameter_groups import find_units
from fdt.v1 import program_pb2
from nfdt.feed import Arrays
from nfdt.layout import lay_out
from nfdt.rules import make_rule
from tests.helpers.programs import Given, Traced, servers, state, traced
from tests.helpers.rehearsal import lags_of, rehearse, round_robin
from tests.helpers.thorough import some_of

X = np.random.default_rng(0).normal(size=(8, 6)).astype("float32")
Y = np.random.default_rng(1).integers(0, 3, 8).astype("int32")


def dense_model(optimizer: Any, **layers: Any) -> keras.Model:
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(5, activation="relu", **layers),
            keras.layers.Dropout(0.25, seed=11),
            keras.layers.Dense(3),
        ]
    )
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model


def embedding_model(optimizer: Any) -> keras.Model:
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [keras.Input((6,), dtype="int32"), keras.layers.Embedding(20, 4), keras.layers.Flatten(), keras.layers.Dense(3)]
    )
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


# TensorFlow's graph optimizer sums the terms of these in another order when the update is a function of its own.
REORDERED = {"rmsprop", "muon"}
WORDS = np.random.default_rng(2).integers(0, 20, (8, 6)).astype("int32")

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.01, momentum=0.5, centered=True),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "adadelta": lambda: keras.optimizers.Adadelta(0.5),
    "adamax": lambda: keras.optimizers.Adamax(0.01),
    "nadam": lambda: keras.optimizers.Nadam(0.01),
    "ftrl": lambda: keras.optimizers.Ftrl(0.1),
    "lion": lambda: keras.optimizers.Lion(0.01),
    "clipvalue": lambda: keras.optimizers.Adam(0.01, clipvalue=0.01),
    "schedule": lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5), momentum=0.9),
    "ema": lambda: keras.optimizers.Adam(0.01, use_ema=True),
    "clipnorm": lambda: keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=0.05),
    "global_clipnorm": lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.05),
    "lamb": lambda: keras.optimizers.Lamb(0.01),
    "muon": lambda: keras.optimizers.Muon(0.01, exclude_layers=["nothing"]),
    "adafactor": lambda: keras.optimizers.Adafactor(0.01),
    "accumulation": lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=2),
    "loss_scale": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)),
}
# One of those that are done element by element, and each that is not, or not always the same.
KINDS = "adam rmsprop schedule ema clipnorm global_clipnorm muon adafactor accumulation loss_scale"
ELEMENTWISE = set(OPTIMIZERS) - {
    "clipnorm", "global_clipnorm", "lamb", "muon", "adafactor", "accumulation", "loss_scale"
}  # fmt: skip


def in_place(model: keras.Model, step: Traced, batches: int, x: np.ndarray) -> dict[int, np.ndarray]:
    """Trains with Keras itself; returns all variables in the program's order."""
    before = step.values()
    model.fit(np.tile(x, (batches, 1)), np.tile(Y, batches), batch_size=len(x), shuffle=False, verbose=0)
    after = step.values()
    for variable, value in zip(step.variables, before.values(), strict=True):
        variable.assign(value)
    return after


def in_two_parts(step: Traced, batches: int, x: np.ndarray, num_shards: int = 1) -> dict[int, np.ndarray]:
    kept = servers(step, make_rule("ddc-asgd"), num_workers=1, num_shards=num_shards)
    for _ in range(batches):
        kept.step(0, Arrays([tf.constant(x), tf.constant(Y)]), np.arange(len(x)))
    return {**kept.replicas[0].read(range(len(step.variables))), **state(kept, step)}


@pytest.mark.parametrize("name", some_of(OPTIMIZERS, KINDS))
def test_both_parts_together_are_the_step(name: str) -> None:
    """One worker: parameters, optimizer state, metrics and seeds bit for bit those of plain Keras."""
    model = dense_model(OPTIMIZERS[name](), kernel_regularizer="l2")
    step = traced(model, (X, Y))
    plain, parts = in_place(model, step, 4, X), in_two_parts(step, 4, X)
    for i, variable in enumerate(step.program.variables):
        if name == "ema" and variable.role == program_pb2.ROLE_TRAINABLE:
            continue  # At the end of fit Keras overwrites these with their averages, which are compared.
        if name in REORDERED:
            assert plain[i] == pytest.approx(parts[i], rel=1e-5, abs=1e-7), variable.tensor.name
        else:
            assert np.array_equal(plain[i], parts[i]), variable.tensor.name


@pytest.mark.parametrize("name", some_of(["sgd", "momentum", "adam", "adagrad"], "sgd adam"))
def test_rows_of_a_table(name: str) -> None:
    model = embedding_model(OPTIMIZERS[name]())
    step = traced(model, (WORDS, Y))
    plain, parts = in_place(model, step, 4, WORDS), in_two_parts(step, 4, WORDS)
    for i, variable in enumerate(step.program.variables):
        assert np.array_equal(plain[i], parts[i]), variable.tensor.name


class DecaysFirst(keras.optimizers.SGD):  # type: ignore[misc]
    """A momentum that decays by itself before it receives the gradient's rows, as those of Keras 2's Adam do."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        kept = self.momentums[self._get_variable_index(variable)]
        self.assign(kept, kept * 0.5)
        self.assign_add(kept, gradient)
        self.assign_sub(variable, keras.ops.cast(learning_rate, variable.dtype) * kept)


@pytest.mark.parametrize("num_shards", [1, 2])
def test_what_decays_by_itself_is_not_the_same_for_all_parameters(num_shards: int) -> None:
    step = traced(model := embedding_model(DecaysFirst(0.1, momentum=0.9)), (WORDS, Y))
    plain, parts = in_place(model, step, 4, WORDS), in_two_parts(step, 4, WORDS, num_shards)
    for i, variable in enumerate(step.program.variables):
        assert np.array_equal(plain[i], parts[i]), variable.tensor.name


@pytest.mark.parametrize("name", some_of(OPTIMIZERS, f"{KINDS} lamb"))
def test_what_is_updated_alike_is_found(name: str) -> None:
    step = traced(dense_model(OPTIMIZERS[name]()), (X, Y))
    parts = cut(step.program)
    units = find_units(step.program, parts)
    assert sorted(i for unit in units.units for i in unit.gradients) == list(range(len(parts.gradients)))
    signatures = {unit.signature for unit in units.units}
    if name in ELEMENTWISE:
        assert len(signatures) == 1 and None not in signatures
    else:
        assert None in signatures


@pytest.mark.parametrize("name", some_of(["momentum", "adam", "rmsprop", "clipnorm", "ema"], "adam clipnorm"))
@pytest.mark.parametrize("num_shards", some_of([2, 4], [4]))
@pytest.mark.parametrize("num_workers", some_of([1, 3], [3]))
def test_shards_together_are_one_server(name: str, num_shards: int, num_workers: int) -> None:
    """Bit for bit, with delays too: no norm is taken over more than one tensor."""
    step = traced(dense_model(OPTIMIZERS[name]()), (X, Y))
    found = []
    for shards in (1, num_shards):
        kept = servers(step, make_rule("ddc-asgd"), num_workers, shards)
        for _ in rehearse(kept, lags_of(round_robin(num_workers, 8)), lambda _: [X, Y]):
            pass
        found.append(state(kept, step))
    for i in found[0]:
        assert np.array_equal(found[0][i], found[1][i]), step.program.variables[i].tensor.name


def test_every_parameter_lives_on_one_shard() -> None:
    step = traced(dense_model(keras.optimizers.Adam()), (X, Y))
    parts = cut(step.program)
    layout = lay_out(step.program, parts, find_units(step.program, parts), 3)
    places = [e.variable for shard in layout.shards for v in shard.vectors for e in v.entries]
    assert sorted(places) == sorted(g.variable for g in parts.gradients)
    assert len(layout.shards) == 3


def lopsided_model(optimizer: Any, *, table: bool = False) -> keras.Model:
    """One tensor has nine tenths of what trains."""
    keras.utils.set_random_seed(3)
    first = [keras.layers.Embedding(20, 64), keras.layers.Flatten()] if table else [keras.layers.Dense(384)]
    model = keras.Sequential([keras.Input((6,)), *first, keras.layers.Dense(301, "relu"), keras.layers.Dense(3)])
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


@pytest.mark.parametrize("name", some_of(["momentum", "adam", "rmsprop", "ema"], "adam ema"))
@pytest.mark.parametrize("update", some_of(["asgd", "ddc-asgd"], ["ddc-asgd"]))
def test_a_tensor_is_cut_where_a_shard_would_have_too_much(name: str, update: str) -> None:
    """Bit for bit as one server, with delays; and what is read, snapshots of both parts, is what was assigned."""
    step = traced(lopsided_model(OPTIMIZERS[name]()), (X, Y))
    found = []
    for shards in (1, 3):
        kept = servers(step, make_rule(update), 3, shards)
        for _ in rehearse(kept, lags_of(round_robin(3, 8)), lambda _: [X, Y]):
            pass
        found.append(state(kept, step))
    entries = [e for shard in kept.layout.shards for v in shard.vectors for e in v.entries]
    assert not all(entry.is_whole for entry in entries)
    lengths = [sum(v.length for v in shard.vectors) for shard in kept.layout.shards]
    assert max(lengths) - min(lengths) <= 32
    for i in found[0]:
        assert np.array_equal(found[0][i], found[1][i]), step.program.variables[i].tensor.name
    given = {i: np.random.default_rng(i).normal(size=v.shape).astype(v.dtype) for i, v in found[1].items()}
    kept.assign(given)
    for i, value in state(kept, step).items():
        assert np.array_equal(value, given[i]), step.program.variables[i].tensor.name


@pytest.mark.parametrize("name", ["adam", "clipnorm", "global_clipnorm", "lamb"])
@pytest.mark.parametrize("num_shards", some_of([2, 3, 4], [3]))
@pytest.mark.parametrize("table", [False, True])
def test_every_entry_of_a_parameter_lives_on_one_shard(name: str, num_shards: int, table: bool) -> None:
    step = traced(lopsided_model(OPTIMIZERS[name](), table=table), (WORDS if table else X, Y))
    parts = cut(step.program)
    layout = lay_out(step.program, parts, find_units(step.program, parts), num_shards)
    seen = {g.variable: np.zeros(step.program.variables[g.variable].tensor.shape, int) for g in parts.gradients}
    for shard in layout.shards:
        for entry in (entry for vector in shard.vectors for entry in vector.entries):
            seen[entry.variable].reshape(-1)[entry.start : entry.start + entry.length] += 1
            # What looks at a whole tensor, or at several, is never cut.
            assert entry.is_whole or name == "adam"
        for of_table in shard.tables:
            seen[of_table.variable] += 1
    assert all((count == 1).all() for count in seen.values())


def test_more_shards_than_tensors_are_refused() -> None:
    step = traced(dense_model(keras.optimizers.SGD()), (X, Y))
    with pytest.raises(
        UsageError, match=r"4 tensors that train cannot be spread over 7 parameter servers.*--ps 4 or less"
    ):
        servers(step, make_rule("asgd"), num_shards=7)


def test_tensors_that_can_be_cut_are_spread_over_more_shards_than_there_are() -> None:
    model = keras.Sequential([keras.Input((600,)), keras.layers.Dense(256)])
    model.compile(keras.optimizers.Adam(), "mse")
    step = traced(model, (np.zeros((2, 600), np.float32), np.zeros((2, 256), np.float32)))
    lengths = [
        sum(v.length for v in shard._layout.vectors) for shard in servers(step, make_rule("asgd"), num_shards=7).shards
    ]
    assert len(lengths) == 7 and max(lengths) - min(lengths) <= 32


def test_the_size_of_an_update_does_not_grow_with_the_model() -> None:
    """Of parameters that are updated alike, one update runs."""
    sizes = []
    for count in (1, 6):
        layers = [keras.layers.Dense(4) for _ in range(count)]
        model = keras.Sequential([keras.Input((6,)), *layers])
        model.compile(keras.optimizers.Adam(), "mse")
        step = traced(model, (X, np.zeros((8, 4), "float32")))
        parts = cut(step.program)
        layout = lay_out(step.program, parts, find_units(step.program, parts), 1)
        sizes.append(len(layout.shards[0].writers))
    assert sizes[0] == sizes[1]


class Projected(keras.Model):
    """Trains on two losses, whose gradients of the same parameters are put together (PCGrad)."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.own = keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(3)

    def call(self, x: Any) -> Any:
        return self.own(self.shared(x))

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            logits = self(x, training=True)
            first = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True))
            second = tf.reduce_mean(tf.abs(logits))
        pairs = [tape.gradient(loss, self.trainable_variables) for loss in (first, second)]
        dot = tf.add_n([tf.reduce_sum(a * b) for a, b in zip(*pairs, strict=True)])
        gradients = [a * tf.cast(dot > 0, tf.float32) + b for a, b in zip(*pairs, strict=True)]
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": first + second}


@pytest.mark.parametrize("num_shards", [1, 2])
def test_a_variable_may_have_several_gradients(num_shards: int) -> None:
    """Its place in a vector is there once for each: they are no parts of a tensor that is cut."""
    keras.utils.set_random_seed(3)
    model = Projected()
    model.compile(keras.optimizers.Adam(0.01))
    model(X)
    step = traced(model, (X, Y), "async")
    plain, parts = in_place(model, step, 4, X), in_two_parts(step, 4, X)
    for i, variable in enumerate(step.program.variables):
        assert np.array_equal(plain[i], parts[i]), variable.tensor.name
    # Compiled, and compensated.
    kept = servers(step, make_rule("ddc-asgd"), 2, num_shards)
    for _ in range(2):
        kept.step(0, Arrays([tf.constant(X), tf.constant(Y)]), np.arange(len(X)))
    assert all(np.isfinite(value).all() for value in state(kept, step).values())


@pytest.mark.parametrize("rule", some_of(["asgd", "ddc-asgd", "dc-asgd-a"], "ddc-asgd dc-asgd-a"))
@pytest.mark.parametrize("dtype", some_of(["complex64", "complex128"], "complex64"))
def test_a_complex_parameter_is_two_real_ones(rule: str, dtype: str) -> None:
    """Delays included: each rule does to real and imaginary parts what it does to numbers of their type."""
    random, real = np.random.default_rng(4), np.dtype(dtype).type(0).real.dtype
    start, batches = random.normal(size=(5, 2)).astype(real), random.normal(size=(8, 1, 5, 2)).astype(real)

    def trained(start: np.ndarray, batches: np.ndarray) -> np.ndarray:
        model = Given([start])
        model.compile(keras.optimizers.SGD(0.1))
        step = traced(model, batches[0])
        kept = servers(step, make_rule(rule), num_workers=3)
        for _ in rehearse(kept, lags_of(round_robin(3, 8)), lambda number: [batches[number]]):
            pass
        return state(kept, step)[step.index(model.parameters[0])].reshape(-1).view(real)

    of_pairs = trained(start, batches)
    assert not np.allclose(of_pairs, start.reshape(-1))
    assert trained(start.view(dtype)[..., 0], batches.view(dtype)[..., 0]) == pytest.approx(
        of_pairs, rel=1e-5, abs=1e-6
    )


def test_gradients_may_differ_in_type() -> None:
    start = [np.ones(3, "float32"), np.ones(5, "float64")]
    model = Given(start)
    model.compile(keras.optimizers.SGD(0.5))
    gradients = tuple(np.ones((1, *w.shape), w.dtype) for w in start)
    step = traced(model, gradients)
    kept = servers(step, make_rule("asgd"))
    kept.step(0, Arrays([tf.constant(g) for g in gradients]), np.arange(1))
    values = state(kept, step)
    for parameter in model.parameters:
        assert np.array_equal(values[step.index(parameter)], np.full(parameter.shape, 0.5))
