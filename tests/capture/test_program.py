"""A step out of a Keras model and back: the same step; and what is refused on the way."""

import collections
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from fdt.base.config import RunConfig
from fdt.capture.keras.keras_3 import Keras3
from fdt.capture.keras.traced_run import warm_up
from fdt.capture.keras.train_step import trace_train_step
from fdt.capture.step.traced_step import TracedStep, refuse_moved
from fdt.client.state import SharedState
from fdt.division import divide
from fdt.division.exchange import Alone
from fdt.errors import UnsupportedError
from fdt.program.graphs import described
from fdt.program.layout import WHOLE, Divided, shares
from fdt.program.packing import pack, unpack
from fdt.program.step_program import load
from fdt.v1 import job_pb2, program_pb2
from tests.helpers.programs import element_like, step_trace

_ROWS = 12


@pytest.fixture
def data() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.random((_ROWS, 5), np.float32), random.integers(0, 3, _ROWS)


def _model(optimizer: Any, *layers: Any, metrics: Any = ("accuracy",)) -> Any:
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input((5,)), keras.layers.Dense(4, activation="relu"), *layers, keras.layers.Dense(3)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=list(metrics), jit_compile=False)
    return model


def _traced(model: Any, data: tuple[np.ndarray, np.ndarray]) -> TracedStep:
    return trace_train_step(RunConfig("train.py", mode="async"), Keras3(), model, element_like(data))


def _run(traced: TracedStep, data: tuple[np.ndarray, np.ndarray], steps: int) -> None:
    """Loads the program runs it, and puts the outcome into the model."""
    program = program_pb2.StepProgram.FromString(traced.program.SerializeToString())
    loaded = load(program)
    state = SharedState(traced.program, traced.variables)
    indices, values = state.changes()
    for i, value in zip(indices, unpack(pack(values), [program.variables[i].tensor for i in indices]), strict=True):
        loaded.variables[i].assign(value)
    for _ in range(steps):
        loaded.step(tf.constant(1.0), *[tf.constant(array) for array in data])
    everything = range(len(loaded.variables))
    state.accept(job_pb2.State(variables=everything), [pack([loaded.variables[i].numpy() for i in everything])])


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw", "rmsprop"])
def test_a_program_is_the_step_bit_for_bit(optimizer: str, data: tuple[np.ndarray, np.ndarray]) -> None:
    local, remote = [_model(optimizer, keras.layers.Dropout(0.3, seed=3)) for _ in range(2)]
    local.fit(*data, batch_size=_ROWS, epochs=3, shuffle=False, verbose=0)
    # Keras resets metrics at every epoch; weights, slots and seeds are what must agree.
    _run(_traced(remote, data), data, steps=3)
    assert int(remote.optimizer.iterations.numpy()) == 3
    pairs = zip(remote.variables + remote.optimizer.variables, local.variables + local.optimizer.variables, strict=True)
    for mine, theirs in pairs:
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy(), err_msg=mine.path)


def test_variables_have_the_roles_they_play(data: tuple[np.ndarray, np.ndarray]) -> None:
    model = _model(keras.optimizers.SGD(momentum=0.9), keras.layers.Dropout(0.5), keras.layers.BatchNormalization())
    program = _traced(model, data).program
    found: dict[int, int] = {}
    for variable in program.variables:
        found[variable.role] = found.get(variable.role, 0) + 1
    assert found == {
        program_pb2.ROLE_TRAINABLE: 6,
        program_pb2.ROLE_OPTIMIZER: 2 + 6,
        program_pb2.ROLE_METRIC: 4,
        program_pb2.ROLE_SEED: 1,
        program_pb2.ROLE_OTHER: 2,
    }
    hole, rate = program.holes
    assert rate.kind == program_pb2.Hole.KIND_RATE
    assert {g.variable for g in hole.gradients} == {
        i for i, v in enumerate(program.variables) if v.role == program_pb2.ROLE_TRAINABLE
    }
    velocities = [v.role for v in program.variables if v.momentum]
    assert velocities == [program_pb2.ROLE_OPTIMIZER] * 6
    assert {v.momentum for v in program.variables} == {0.0, 0.9}


class _Averaging(keras.Model):  # type: ignore[misc]
    """Keeps a moving average of all that a network has."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.average = (_model("sgd", keras.layers.BatchNormalization(momentum=0.9)) for _ in range(2))

    def train_step(self, batch: Any) -> dict[str, tf.Tensor]:
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.net.loss(y, self.net(x, training=True)))
        variables = self.net.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        for mine, average in zip(self.net.weights, self.average.weights, strict=True):
            average.assign(0.9 * average + 0.1 * mine)
        return {"loss": loss}


def test_what_follows_a_workers_own_statistics_is_its_own(data: tuple[np.ndarray, np.ndarray]) -> None:
    model = _Averaging()
    model.compile("sgd")
    traced = _traced(model, data)
    roles = {id(v): d.role for v, d in zip(traced.variables, traced.program.variables, strict=True)}
    found = {
        name: [roles[id(w.value)] for w in net.weights]
        for name, net in (("net", model.net), ("average", model.average))
    }
    trained, equal, own = program_pb2.ROLE_TRAINABLE, program_pb2.ROLE_OPTIMIZER, program_pb2.ROLE_OTHER
    assert found["net"] == [trained] * 4 + [own] * 2 + [trained] * 2
    assert found["average"] == [equal] * 4 + [own] * 2 + [equal] * 2


def test_the_same_step_is_the_same_bytes(data: tuple[np.ndarray, np.ndarray]) -> None:
    model = _model("sgd")
    model.fit(*data, verbose=0)
    sizes = {len(_traced(model, data).program.SerializeToString(deterministic=True)) for _ in range(2)}
    assert len(sizes) == 1


def _recurrent() -> Any:
    keras.utils.set_random_seed(1)
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Embedding(20, 4, mask_zero=True),
            layers.Bidirectional(layers.LSTM(3, return_sequences=True)),
            layers.GRU(3),
            layers.Dense(1),
        ]
    )
    model.compile("adam", keras.losses.BinaryCrossentropy(from_logits=True), jit_compile=False)
    model.build((None, 7))
    return model


def test_what_travels_is_divided_as_the_trace_is() -> None:
    """The pool knows of the sizes in loops what the client knows, so `fdt check` tells what the workers do."""
    words = np.random.default_rng(0).integers(1, 20, (_ROWS, 7))
    traced = _traced(_recurrent(), (words, np.ones((_ROWS, 1), np.float32)))
    rows = [divide.Input(Divided(0, shares(_ROWS, 2)), shape) for shape in ((_ROWS, 7), (_ROWS, 1))]
    loaded = load(program_pb2.StepProgram.FromString(traced.program.SerializeToString()))
    found = []
    for description, handles in (
        (described(traced.graph), [inner for _, inner in traced.graph.captures]),
        (loaded.description, [resource.handle for resource in loaded.resources]),
    ):
        held = [divide.Input(WHOLE, (), handle) for handle in handles]
        divided = divide.divide(description, Alone(2), [divide.Input(WHOLE, ()), *rows, *held])
        found.append(
            (
                divided.part_divided,
                len(divided.walk.exchanged),
                collections.Counter(each.kind for each in divided.walk.exchanged),
            )
        )
    of_trace, of_program = found
    assert of_program == of_trace
    assert of_program[0] > 0.8, "and well at that"


class _Largest(keras.metrics.Metric):
    def __init__(self) -> None:
        super().__init__(name="largest")
        self.seen = self.add_weight(name="seen", initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.seen.assign(tf.maximum(self.seen, tf.reduce_max(y_pred)))

    def result(self) -> Any:
        return self.seen.value


def test_a_metric_that_does_not_add_up_is_refused_by_name(data: tuple[np.ndarray, np.ndarray]) -> None:
    with pytest.raises(UnsupportedError, match="'largest'"):
        _traced(_model("sgd", metrics=[_Largest()]), data)


class _SetsItsScale(keras.layers.Layer):
    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones", name="scale")

    def call(self, x: Any) -> Any:
        self.scale.assign(1 / tf.math.reduce_std(x, 0))
        return x * self.scale


def test_a_layer_that_sets_what_is_trained_is_known_to_move_it(data: tuple[np.ndarray, np.ndarray]) -> None:
    moved = _traced(_model("sgd", _SetsItsScale()), data)
    with pytest.raises(UnsupportedError, match=r"changes 'sequential.*/scale' and then computes a gradient"):
        refuse_moved(moved)
    refuse_moved(_traced(_model("sgd", keras.layers.BatchNormalization()), data))


def test_a_step_without_an_optimizer_is_refused(data: tuple[np.ndarray, np.ndarray]) -> None:
    with pytest.raises(UnsupportedError, match="optimizer"):
        step_trace(RunConfig("train.py")).trace(lambda batch: {"loss": tf.reduce_mean(batch[0])}, element_like(data))


def test_changes_are_found_whoever_made_them() -> None:
    variables = [tf.Variable([1.0, 2.0]), tf.Variable(3), tf.Variable(float("nan"))]
    program = program_pb2.StepProgram()
    for variable in variables:
        program.variables.add(tensor=program_pb2.Tensor(dtype=variable.dtype.name, shape=variable.shape))
    state = SharedState(program, variables)
    assert state.changes()[0] == [0, 1, 2]
    assert state.changes()[0] == [], "NaN is equal to itself: bytes are compared"
    variables[1].assign_add(1)
    assert state.changes()[0] == [1]
    state.accept(job_pb2.State(variables=[0]), [pack([np.array([5.0, 6.0], np.float32)])])
    assert variables[0].numpy().tolist() == [5.0, 6.0]
    assert state.changes()[0] == []


def test_values_that_are_sent_share_the_variables_memory_and_do_not_change() -> None:
    kinds = [
        tf.Variable([1.0] * 100),
        tf.Variable([True, False]),
        tf.Variable(["a", "bc"]),
        tf.Variable(tf.constant([3.0], tf.bfloat16)),
    ]
    program = program_pb2.StepProgram()
    for variable in kinds:
        program.variables.add(tensor=program_pb2.Tensor(dtype=variable.dtype.name, shape=variable.shape))
    state = SharedState(program, kinds)
    indices, values = state.changes()
    assert indices == [0, 1, 2, 3]
    assert values[0].ctypes.data == np.asarray(memoryview(kinds[0].read_value())).ctypes.data
    before = pack(values)
    kinds[0].assign_add([1.0] * 100)
    kinds[0].scatter_nd_update([[0]], [7.0])
    assert pack(values) == before
    assert state.changes()[0] == [0]
    kinds[2].assign(["a", "bd"])
    kinds[3].assign_add(tf.constant([1.0], tf.bfloat16))
    assert state.changes()[0] == [2, 3]


def test_the_learning_rate_warms_up_to_its_target() -> None:
    factor = warm_up(4.0, 10)
    values = [float(factor(tf.constant(i, tf.int64))) for i in (0, 5, 10, 1000)]
    assert values == [1.0, 2.5, 4.0, 4.0]
