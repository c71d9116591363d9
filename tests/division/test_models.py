"""Keras's layers, losses, metrics and optimizers over simulated workers: the model's own `train_step`, untouched."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from fdt.division import divide
from fdt.program.graphs import described
from fdt.program.layout import Divided
from tests.helpers.divided import over_workers, side_by_side
from tests.helpers.divided_models import IN_DOUBLE_PRECISION, MODELS, batches, build_for, choose_precision
from tests.helpers.thorough import some_of
from tests.helpers.together import Together

_ROWS, _WORKERS, _NUM_STEPS = 15, 4, 3
# Operations that get divided inputs whole: similarities to all samples, where a column of the batch is a row.
_WHOLE: dict[str, dict[str, int]] = {"contrastive": {"SparseSoftmaxCrossEntropyWithLogits": 1}}
# Part of the arithmetic that is divided, where it is not all: powers of a layer's weights; the gradient of the critic by its
# own output, which is 1 for each row; what masked LSTMs and GRUs make of the zeros that they begin with, which counts as much
# as all steps of the loop.
_LEAST_DIVIDED = {"spectral": 0.94, "adversarial": 0.97, "text": 0.86, "masked_backwards": 0.9}


# As `fit` traces, for any number of rows; some also as it does where all batches have as many.
_OF_ONE_SIZE = ("text", "resnet_34", "u_net")
# Made of layers that others have, too.
_REPEAT = ("resnet_34", "recurrent", "transformer", "vision_transformer")


@pytest.mark.parametrize(
    ("name", "num_rows"),
    some_of(
        [*((name, None) for name in MODELS), *((name, _ROWS) for name in _OF_ONE_SIZE)],
        [*((name, None) for name in MODELS if name not in _REPEAT), ("u_net", _ROWS)],
    ),
)
def test_a_model_trains_as_undivided_and_all_of_it_is_divided(
    name: str, num_rows: int | None, request: pytest.FixtureRequest
) -> None:
    keras.utils.set_random_seed(1)
    choose_precision(name, request)
    shape, build = MODELS[name]
    net, data = build(), batches(shape, _ROWS, _NUM_STEPS)
    build_for(net, data[0])
    assert (name in IN_DOUBLE_PRECISION) == (net.trainable_variables[0].dtype == "float64")
    specs = [tf.TensorSpec((num_rows, *array.shape[1:]), array.dtype) for array in data[0]]
    whole = tf.function(lambda x, y: tf.nest.flatten(net.train_step((x, y)))).get_concrete_function(*specs)
    divided = over_workers(whole, _ROWS, _WORKERS, num_arguments=2)
    outputs, variables = side_by_side(
        lambda: [np.stack([float(value) for value in whole(*map(tf.constant, batch))]) for batch in data],
        lambda: [np.stack([float(value) for value in divided.function(*map(tf.constant, batch))]) for batch in data],
        list(whole.graph.variables),
    )
    assert outputs <= 1e-5 and variables <= 1e-5
    assert divided.account is not None
    assert divided.account.computed_whole == _WHOLE.get(name, {})
    assert divided.account.part >= _LEAST_DIVIDED.get(name, 1.0)
    # Sums of gradients, and three vectors of moments of each worker: nothing as large as what a layer computes of a batch.
    sizes = [(weight.shape.num_elements(), 3 * _WORKERS * weight.shape[-1]) for weight in net.trainable_variables]
    itemsize = np.dtype(net.trainable_variables[0].dtype).itemsize
    assert divided.account.largest <= max(map(max, sizes)) * itemsize


def test_moments_are_exchanged_together() -> None:
    """A layer's mean and variance, and the two sums of their gradients: whatever else is made of them follows."""
    keras.utils.set_random_seed(1)
    net = keras.Sequential([keras.Input((4,)), keras.layers.BatchNormalization()])
    data = batches((4,), _ROWS, 1)
    layer = net.layers[0]

    def gradient(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(layer(x, training=True) ** 3)
        return [tape.gradient(loss, x), *map(tf.identity, layer.non_trainable_variables)]

    whole = tf.function(gradient).get_concrete_function(tf.TensorSpec((_ROWS, 4)))
    divided = over_workers(whole, _ROWS, _WORKERS, num_arguments=1)
    divided.function(tf.constant(data[0][0]))
    assert divided.account is not None
    assert divided.account.exchanges == {"sum": 2, "gather": 2}
    assert len({exchanged.collective for exchanged in divided.divided.walk.exchanged}) == 3
    assert divided.account.largest == _ROWS * 4 * 4


@pytest.mark.parametrize("is_near", [False, True], ids=["one exchange", "two"])
@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize("rows", [_ROWS, 3], ids=["rows for all", "a worker without rows"])
def test_a_variance_is_exact_however_far_the_mean_is(
    rows: int, is_fused: bool, is_near: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In single precision, of numbers whose mean is a thousand times their deviation: as exact as two passes."""
    monkeypatch.setattr(Together, "is_near", is_near)
    x = (1000 + np.random.default_rng(0).normal(size=(rows, 5, 5, 3))).astype("float32")

    def moments(x: tf.Tensor) -> list[tf.Tensor]:
        if not is_fused:
            return list(tf.nn.moments(x, [0, 1, 2]))
        found = tf.raw_ops.FusedBatchNormV3(
            x=x, scale=tf.ones(3), offset=tf.zeros(3), mean=tf.zeros(0), variance=tf.zeros(0), is_training=True
        )
        return [found.reserve_space_1, found.reserve_space_2]

    whole = tf.function(moments).get_concrete_function(tf.TensorSpec(x.shape))
    divided = over_workers(whole, rows, _WORKERS, num_arguments=1)
    mean, variance = divided.function(tf.constant(x))
    exact = x.astype("float64")
    np.testing.assert_allclose(mean, exact.mean((0, 1, 2)), rtol=5e-7)
    np.testing.assert_allclose(variance, exact.var((0, 1, 2)), rtol=1e-5)
    assert divided.account is not None and divided.account.exchanges == ({"sum": 2} if is_near else {"gather": 1})


def test_a_gradient_that_the_step_needs_itself_is_exchanged_there() -> None:
    """What is needed before it comes to the optimizer is no gradient on the wire, and is not rounded."""

    @tf.function(autograph=False)
    def to_optimizer(*gradients: tf.Tensor) -> list[tf.Tensor]:
        return [tf.identity(gradient) for gradient in gradients]

    def step(x: tf.Tensor) -> list[tf.Tensor]:
        one, other = tf.reduce_sum(x, 0), tf.reduce_sum(x * x, 0)
        length = tf.sqrt(tf.reduce_sum(one * one))
        return [length, *to_optimizer(one, other)]

    graph = tf.function(step, autograph=False).get_concrete_function(tf.TensorSpec((4, 3))).graph
    (call,) = [op for op in graph.get_operations() if "PartitionedCall" in op.type]
    inputs = [divide.Input(Divided(0, (2, 2)), (4, 3))]
    divided = divide.divide(described(graph), Together(2), inputs, marks=[call.get_attr("f").name])
    sources = {exchanged.source: exchanged.is_gradient for exchanged in divided.walk.exchanged}
    assert [sources[call.inputs[place].op.name] for place in range(2)] == [False, True]


def test_texts_that_a_model_splits_into_words_are_divided_again() -> None:
    """Every worker splits all texts; what is made of the words has the batch's rows."""
    keras.utils.set_random_seed(1)
    texts = np.array([" ".join("abcdefg"[i % 7] for i in range(row, row + row % 5 + 1)) for row in range(_ROWS)])
    vectorizer = keras.layers.TextVectorization(max_tokens=10, output_sequence_length=6)
    vectorizer.adapt(texts)
    given = keras.Input((), dtype="string")
    words = keras.layers.Embedding(10, 8)(vectorizer(given))
    net = keras.Model(given, keras.layers.Dense(1)(keras.layers.GlobalAveragePooling1D()(keras.layers.Dense(4)(words))))
    net.compile("adam", "mse")
    labels = np.arange(_ROWS, dtype="float32")[:, None] / _ROWS
    net.train_step((tf.constant(texts), tf.constant(labels)))
    specs = tf.TensorSpec((None,), tf.string), tf.TensorSpec((None, 1))
    whole = tf.function(lambda x, y: tf.nest.flatten(net.train_step((x, y)))).get_concrete_function(*specs)
    divided = over_workers(whole, _ROWS, _WORKERS, num_arguments=2)
    outputs, variables = side_by_side(
        lambda: [float(value) for value in whole(tf.constant(texts), tf.constant(labels))],
        lambda: [float(value) for value in divided.function(tf.constant(texts), tf.constant(labels))],
        list(whole.graph.variables),
    )
    assert outputs <= 1e-5 and variables <= 1e-5
    assert divided.account is not None
    assert divided.account.part == 1 and divided.account.computed_whole == {"StringSplitV2": 1}
