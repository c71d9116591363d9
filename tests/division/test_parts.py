"""State in parts: each worker holds some rows of each variable, and the step gives what it gives undivided."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fdt.division import owners, weights
from fdt.program.holes import Holes, open_holes, pass_hole
from fdt.program.layout import Divided, shares
from tests.helpers.divided import DividedStep, largest_difference
from tests.helpers.divided_models import MODELS, batches, build_for, choose_precision
from tests.helpers.hard_steps import CLASSES, FEATURES, STEPS, Net
from tests.helpers.thorough import some_of

_ROWS, _WORKERS, _STEPS = 15, 3, 3
_NUMBERS = some_of([2, 3, 5], [_WORKERS])
# Smaller variables stay whole.
_FROM_ROWS = 8


@contextmanager
def _marked(holes: Holes) -> Iterator[None]:
    """Passes the gradients that Keras's optimizers get through a hole of the step that is traced, as a script's do."""

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        variables = trainable_variables or self._trainable_variables
        return plain(self, pass_hole(list(grads), [v.value for v in variables]), trainable_variables)

    plain = keras.Optimizer.apply
    with pytest.MonkeyPatch.context() as patch, open_holes(holes):
        patch.setattr(keras.Optimizer, "apply", apply)
        yield


def _traced(step: Any, specs: Any, is_marked: bool) -> tuple[Any, dict[str, Any]]:
    """Returns a step's trace, and its gradients by the function that receives them."""
    found: list[Holes] = []

    def marked(*arguments: Any) -> Any:
        found.append(Holes(tf.constant(1.0)))
        with _marked(found[-1]):
            return step(*arguments)

    whole = tf.function(marked if is_marked else step, autograph=False).get_concrete_function(*specs)
    opened = found[-1].opened if found else []
    return whole, {hole.function: list(zip(hole.variables, hole.sparse, strict=True)) for hole in opened}


def _in_parts(variables: Any) -> list[tf.Variable]:
    return [v for v in variables if v.dtype.is_floating and v.shape.rank and v.shape[0] >= _FROM_ROWS]


def _differences(whole: Any, divided: DividedStep, data: Any) -> tuple[float, float]:
    """Returns the largest differences of outputs and of variables after some steps."""
    variables = list(whole.graph.variables)
    first = [v.numpy() for v in variables]
    outputs = [[t.numpy() for t in tf.nest.flatten(whole(*map(tf.constant, batch)))] for batch in data]
    after = [v.numpy() for v in variables]
    for variable, value in zip(variables, first, strict=True):
        variable.assign(value)
    other = [[t.numpy() for t in divided.function(*map(tf.constant, batch))] for batch in data]
    divided.put_together()
    pairs = zip(outputs, other, strict=True)
    return max(largest_difference(*pair) for pair in pairs), largest_difference(after, [v.numpy() for v in variables])


@pytest.mark.parametrize("num_workers", _NUMBERS)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("is_marked", [True, False], ids=["gradients known", "gradients unknown"])
def test_a_model_in_parts_trains_as_the_whole(
    name: str, is_marked: bool, num_workers: int, request: pytest.FixtureRequest
) -> None:
    keras.utils.set_random_seed(1)
    choose_precision(name, request)
    shape, build = MODELS[name]
    net, data = build(), batches(shape, _ROWS, _STEPS)
    build_for(net, data[0])
    specs = [tf.TensorSpec((_ROWS, *array.shape[1:]), array.dtype) for array in data[0]]
    whole, marks = _traced(lambda x, y: tf.nest.flatten(net.train_step((x, y))), specs, is_marked)
    rows = Divided(0, shares(_ROWS, num_workers))
    of_state = _in_parts(whole.graph.variables)
    divided = DividedStep(whole, {0: rows, 1: rows}, num_workers, of_state=of_state, marks=marks)
    outputs, variables = _differences(whole, divided, data)
    assert outputs <= 1e-5 and variables <= 1e-5, (outputs, variables)
    if of_state:
        kept = [divided.divided.layouts[2 + divided._place(v)] for v in of_state]
        assert all(isinstance(layout, Divided) for layout in kept), "no variable had to be made whole"


_make = keras.optimizers
OPTIMIZERS = {
    "SGD": lambda: _make.SGD(0.05, weight_decay=0.01),
    "Nesterov": lambda: _make.SGD(0.05, momentum=0.9, nesterov=True),
    "Adam": lambda: _make.Adam(0.01, amsgrad=True, clipvalue=0.001),
    "AdamW": lambda: _make.AdamW(0.01, use_ema=True, ema_momentum=0.9),
    "Adagrad": lambda: _make.Adagrad(0.05),
    "Adadelta": lambda: _make.Adadelta(0.5),
    "Adamax": lambda: _make.Adamax(0.01, global_clipnorm=0.1),
    "Nadam": lambda: _make.Nadam(0.01, clipnorm=0.1),
    "RMSprop": lambda: _make.RMSprop(0.01, centered=True, momentum=0.5),
    "Ftrl": lambda: _make.Ftrl(0.05),
    "Lion": lambda: _make.Lion(0.001, gradient_accumulation_steps=2),
    "Lamb": lambda: _make.Lamb(0.01),
    "Adafactor": lambda: _make.Adafactor(0.01),
    "Muon": lambda: _make.Muon(0.01),
}


@pytest.mark.parametrize("num_workers", _NUMBERS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_keeps_moments_in_parts(name: str, num_workers: int) -> None:
    """Of a table and of dense layers: what it computes across entries is exchanged, everything else is not."""
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Embedding(400, 6), keras.layers.Flatten(), keras.layers.Dense(12), keras.layers.Dense(1)]
    net = keras.Sequential([keras.Input((5,), dtype="int32"), *layers])
    net.compile(OPTIMIZERS[name](), "mse")
    net.optimizer.build(net.trainable_variables)
    specs = [tf.TensorSpec((_ROWS, 5), tf.int32), tf.TensorSpec((_ROWS, 1))]
    whole, marks = _traced(lambda x, y: tf.nest.flatten(net.train_step((x, y))), specs, is_marked=True)
    random, rows = np.random.default_rng(0), Divided(0, shares(_ROWS, num_workers))
    data = [
        (random.integers(0, 400, (_ROWS, 5)).astype("int32"), random.normal(size=(_ROWS, 1)).astype("float32"))
        for _ in range(_STEPS)
    ]
    of_state = _in_parts(whole.graph.variables)
    divided = DividedStep(whole, {0: rows, 1: rows}, num_workers, of_state=of_state, marks=marks)
    outputs, variables = _differences(whole, divided, data)
    assert outputs <= 1e-5 and variables <= 5e-5
    assert not divided.account.computed_whole
    assert sum(isinstance(layout, Divided) for layout in divided.divided.layouts[2:]) == len(of_state)
    table = max(each.num_bytes for each in divided.divided.walk.exchanged if each.kind in ("gather", "sum"))
    assert table < 400 * 6 * 4, "the table and its moments do not travel"


@pytest.mark.parametrize("epsilon", [1e-7, 0.0], ids=["no zeros", "zeros"])
def test_rows_stay_with_their_owners_where_keras_divides_them(epsilon: float) -> None:
    """Keras 3 looks for zeros in what it divides rows by: then it divides those rows too, which gives NaNs."""
    random, rows = np.random.default_rng(1), Divided(0, shares(_ROWS, _WORKERS))
    table, moment = tf.Variable(random.normal(size=(40, 3)).astype("float32")), tf.Variable(tf.zeros((40, 3)))

    def step(ids: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((tf.reduce_sum(tf.gather(table, ids), [1, 2]) - y) ** 2)
        (gradient,) = pass_hole([tape.gradient(loss, table)], [table])
        # Each row once, as Keras's optimizers have them.
        moment.scatter_add(tf.IndexedSlices(gradient.values**2, gradient.indices))
        change = keras.ops.divide(gradient, keras.ops.sqrt(moment + epsilon))
        table.scatter_sub(tf.IndexedSlices(0.01 * change.values, change.indices))
        return [loss]

    specs = [tf.TensorSpec((_ROWS, 2), tf.int32), tf.TensorSpec((_ROWS,))]
    whole, marks = _traced(step, specs, is_marked=True)
    divided = DividedStep(whole, {0: rows, 1: rows}, _WORKERS, of_state=[table, moment], marks=marks)
    data = [(random.permutation(40)[: 2 * _ROWS].reshape(_ROWS, 2).astype("int32"), np.ones(_ROWS, "float32"))]
    outputs, variables = _differences(whole, divided, data)
    assert outputs <= 1e-5 and variables <= 1e-5
    assert np.isnan(table.numpy()).any() == (epsilon == 0)
    gathers = [each for each in divided.divided.walk.exchanged if each.kind == "gather"]
    assert all("cond/" in each.reader for each in gathers), "only in the branch for zeros, and not what it returns"


def test_a_weight_is_whole_only_near_its_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is put together for the forward pass and again for the backward pass, when computation has come near enough."""
    keras.utils.set_random_seed(1)
    net = keras.Sequential([keras.Input((16,)), *(keras.layers.Dense(16, "tanh") for _ in range(6))])
    net.compile(keras.optimizers.Adam(0.01), "mse")
    net.optimizer.build(net.trainable_variables)
    whole, marks = _traced(
        lambda x, y: tf.nest.flatten(net.train_step((x, y))), [tf.TensorSpec((_ROWS, 16))] * 2, is_marked=True
    )
    random, rows = np.random.default_rng(0), Divided(0, shares(_ROWS, _WORKERS))
    data = [(random.normal(size=(_ROWS, 16)).astype("float32"),) * 2 for _ in range(_STEPS)]
    of_state = [v for v in _in_parts(whole.graph.variables) if v.shape.rank == 2]
    gathers = {}
    for num_kept in (100, 2):
        monkeypatch.setattr(weights, "AHEAD_BYTES", num_kept * 16 * 16 * 4)
        monkeypatch.setattr(owners, "TOGETHER_BYTES", num_kept * 16 * 16 * 4)
        divided = DividedStep(whole, {0: rows, 1: rows}, _WORKERS, of_state=of_state, marks=marks)
        outputs, variables = _differences(whole, divided, data)
        assert outputs <= 1e-5 and variables <= 1e-5
        exchanged = divided.divided.walk.exchanged
        gathers[num_kept] = [each for each in exchanged if each.kind == "gather" and each.num_bytes == 16 * 16 * 4]
        messages = {each.collective for each in exchanged if each.kind == "scatter"}
        waiting = [node for node in divided.divided.library[-1].node_def if node.name.startswith("after")]
        # Of one gradient, one, two and two.
        assert len(messages) == (1 if num_kept == 100 else 4)
        assert all(any(given.startswith("^") for given in node.input) for node in waiting)
        assert bool(waiting) == (num_kept == 2)
    assert len(gathers[100]) == 6
    # The first layer's weight is not read in the backward pass; the last ones are still there then.
    assert 6 + 2 <= len(gathers[2]) <= 6 + 4


@pytest.mark.parametrize("num_workers", _NUMBERS)
@pytest.mark.parametrize("name", STEPS)
def test_a_hard_step_in_parts_gives_what_it_gives_whole(name: str, num_workers: int) -> None:
    net, random = Net(), np.random.default_rng(3)
    specs = [tf.TensorSpec((_ROWS, FEATURES), tf.float32), tf.TensorSpec((_ROWS,), tf.int64)]
    whole = tf.function(lambda x, y: STEPS[name].step(net, x, y)).get_concrete_function(*specs)
    of_state = [v for v in whole.graph.variables if v.dtype.is_floating and v.shape.rank and v.shape[0] >= num_workers]
    data = [
        (random.normal(size=(_ROWS, FEATURES)).astype("float32"), random.integers(0, CLASSES, _ROWS))
        for _ in range(_STEPS)
    ]
    rows = Divided(0, shares(_ROWS, num_workers))
    divided = DividedStep(whole, {0: rows, 1: rows}, num_workers, of_state=of_state)
    outputs, variables = _differences(whole, divided, data)
    assert outputs <= 1e-5 and variables <= 1e-5, (outputs, variables)


@dataclasses.dataclass
class _Lookup:
    """A step that looks rows up in a table and updates it, in several ways."""

    table: tf.Variable
    moment: tf.Variable

    def step(self, kind: str, ids: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            if kind == "cast":
                rows = tf.cast(tf.gather(tf.cast(self.table, tf.float64), ids), tf.float32)
            elif kind == "read":
                rows = tf.gather(tf.convert_to_tensor(self.table), ids)
            else:
                rows = tf.gather(self.table, ids)
            loss = tf.reduce_sum((tf.reduce_sum(rows, [1, 2]) - y) ** 2)
        gradient = tape.gradient(loss, self.table)
        (gradient,) = pass_hole([gradient], [self.table])
        if kind == "scattered":
            self.moment.scatter_add(tf.IndexedSlices(gradient.values**2, gradient.indices))
            rate = 0.01 / (1 + tf.gather(self.moment, gradient.indices))
            self.table.scatter_sub(tf.IndexedSlices(rate * gradient.values, gradient.indices))
        elif kind in ("adagrad", "adagrad, sized", "adagrad, places read"):
            # Of rows that occur twice, TensorFlow loses updates: optimizers add them up before.
            names, places = tf.unique(gradient.indices)
            number = tf.size(names) if kind == "adagrad, sized" else tf.shape(names)[0]
            summed = tf.math.unsorted_segment_sum(gradient.values, places, number)
            if kind == "adagrad, places read":
                summed *= 1 + tf.cast(tf.reduce_sum(places) - tf.reduce_sum(tf.sort(places)), tf.float32)
            tf.raw_ops.ResourceSparseApplyAdagradV2(
                var=self.table.handle, accum=self.moment.handle, lr=0.01, epsilon=1e-7, grad=summed, indices=names
            )
        elif kind == "summed":
            # As Keras 2 adds them up.
            names, places = tf.unique(gradient.indices)
            rows_of = tf.math.unsorted_segment_sum(gradient.values, places, tf.shape(names)[0])
            self.moment.scatter_add(tf.IndexedSlices(rows_of * rows_of, names))
            rate = 0.01 / (tf.sqrt(tf.gather(self.moment, names)) + 1e-7)
            self.table.scatter_add(tf.IndexedSlices(-rate * rows_of, names))
        elif kind == "clipped":
            norm = tf.sqrt(tf.reduce_sum(gradient.values**2))
            self.table.scatter_sub(tf.IndexedSlices(0.01 * gradient.values / (1 + norm), gradient.indices))
        else:
            dense = tf.convert_to_tensor(gradient)
            squares = tf.math.unsorted_segment_sum(gradient.values**2, gradient.indices, self.table.shape[0])
            self.moment.assign_add(0.1 * (squares - self.moment))
            self.table.assign_sub(0.01 * dense / (1 + tf.sqrt(self.moment)))
        return [loss, rows]


@pytest.mark.parametrize(
    "kind",
    ["gathered", "read", "cast", "scattered", "adagrad", "adagrad, sized", "adagrad, places read", "summed", "clipped"],
)
@settings(
    max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), phases=[Phase.generate]
)
@given(data=st.data())
def test_rows_travel_to_their_owners_and_back(kind: str, data: st.DataObject) -> None:
    """Ids that occur twice, no ids, ids that one worker owns, workers without rows of the batch."""
    workers, width = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 3))
    rows, batch, each = data.draw(st.integers(workers, 12)), data.draw(st.integers(1, 6)), data.draw(st.integers(0, 4))
    highest = data.draw(st.integers(0, rows - 1))
    random = np.random.default_rng(data.draw(st.integers(0, 9)))
    net = _Lookup(tf.Variable(random.normal(size=(rows, width)).astype("float32")), tf.Variable(tf.ones((rows, width))))
    specs = [tf.TensorSpec((batch, each), tf.int32), tf.TensorSpec((batch,))]
    whole, marks = _traced(lambda ids, y: net.step(kind, ids, y), specs, is_marked=True)
    layout = Divided(0, shares(batch, workers))
    used = [id(handle) for handle in whole.captured_inputs]
    of_state = [v for v in (net.table, net.moment) if id(v.handle) in used]
    divided = DividedStep(whole, {0: layout, 1: layout}, workers, of_state=of_state, marks=marks)
    batches = [
        (random.integers(0, highest + 1, (batch, each)).astype("int32"), random.normal(size=batch).astype("float32"))
        for _ in range(2)
    ]
    outputs, variables = _differences(whole, divided, batches)
    assert outputs <= 2e-5 and variables <= 2e-5
    assert kind == "adagrad, places read" or not each or not divided.account.computed_whole
    assert len(of_state) == sum(isinstance(layout, Divided) for layout in divided.divided.layouts[2:])
    gathers = [exchanged for exchanged in divided.divided.walk.exchanged if exchanged.kind == "gather"]
    added_up = [e for e in gathers if "Unique" in e.source + e.reader or "UnsortedSegmentSum" in e.source + e.reader]
    assert not added_up or kind == "adagrad, places read", "rows are added up where they are"
    largest = max((exchanged.num_bytes for exchanged in gathers), default=0)
    assert largest <= batch * each * width * 4, "rows travel, and not the table"


def test_an_id_that_the_table_does_not_have_is_refused_as_by_one_machine() -> None:
    net = _Lookup(tf.Variable(tf.ones((6, 2))), tf.Variable(tf.ones((6, 2))))
    specs = [tf.TensorSpec((4, 3), tf.int32), tf.TensorSpec((4,))]
    whole, marks = _traced(lambda ids, y: net.step("gathered", ids, y), specs, is_marked=True)
    rows = Divided(0, (2, 2))
    divided = DividedStep(whole, {0: rows, 1: rows}, 2, of_state=[net.table, net.moment], marks=marks)
    wrong = tf.constant([[0, 1, 2], [3, 4, 5], [0, 0, 0], [0, 6, 0]]), tf.zeros(4)
    for step in (whole, divided.function):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"6.*is not in"):
            step(*wrong)
