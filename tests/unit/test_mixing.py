"""Where rows of a batch meet is seen in the graph: before that they may be put one after the other, whoever computed them."""

from collections.abc import Callable

import pytest
import tensorflow as tf

from fdt.capture.step.mixing import Behind
from fdt.capture.step.reductions import Reader

W = tf.constant([1.0, 2.0, 3.0])
COLUMN = tf.constant([[1.0], [2.0], [3.0]])


def size(x: tf.Tensor) -> tf.Tensor:
    return tf.shape(x)[0]


def mixes(function: Callable[[tf.Tensor], tf.Tensor], layers: tuple[str, ...] = ()) -> bool:
    found: list[bool] = []

    @tf.function(autograph=False)
    def step(x: tf.Tensor, share: tf.Tensor) -> None:
        result = function(x)
        found.append(Reader({x.op.name}, share, (), layers).mixes(result))

    step.get_concrete_function(tf.TensorSpec([None, 3]), tf.TensorSpec([]))
    return found[-1]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: tf.linalg.diag_part(tf.matmul(x, x, transpose_b=True)),
        lambda x: tf.reduce_sum(x @ tf.transpose(x)),
        lambda x: tf.reduce_sum(tf.square(x[:, None] - tf.expand_dims(x, 0)), -1),
        lambda x: x[:, None] - x[None],
        lambda x: tf.einsum("ij,kj->ik", x, x),
        lambda x: x[::-1],
        lambda x: x[1:] - x[:-1],
        lambda x: tf.gather(x, tf.range(size(x))),
        lambda x: tf.range(size(x)),
        lambda x: tf.eye(size(x)),
        lambda x: tf.concat([x, x], 0),
        lambda x: tf.split(x, 2)[0],
        lambda x: tf.tile(x, [2, 1]),
        lambda x: tf.boolean_mask(x[:, 0], x[:, 0] > 0),
        lambda x: tf.reduce_sum(x - tf.reduce_mean(x, 0)),
        lambda x: x * tf.reduce_max(x),
        lambda x: x / tf.cast(size(x), tf.float32),
        # The well-known mistake: [rows] and [rows, 1] make a matrix.
        lambda x: tf.reduce_mean(tf.square(x[:, 0] - x[:, :1])),
        lambda x: tf.nn.softmax(x[:, 0]),
        lambda x: tf.sort(x[:, 0]),
        lambda x: tf.cumsum(x),
        lambda x: tf.roll(x, 1, 0),
        lambda x: tf.random.shuffle(x),
        lambda x: tf.reshape(x, [1, -1]),
    ],
)
def test_rows_meet(function: Callable[[tf.Tensor], tf.Tensor]) -> None:
    assert mixes(function)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: tf.reduce_mean(tf.nn.relu(x @ tf.linalg.diag(W))),
        lambda x: tf.reduce_mean(x[:, :, None] * tf.expand_dims(x, 1)),
        lambda x: tf.einsum("bi,bj->bij", x, x),
        lambda x: tf.matmul(x[:, :, None], x[:, :, None], transpose_b=True),
        lambda x: x[:, ::-1][..., :1],
        lambda x: tf.range(tf.shape(x)[1]),
        lambda x: tf.reshape(x, [size(x), 1, -1]),
        lambda x: tf.tile(COLUMN[None], [size(x), 1, 1]) + x[:, :, None],
        lambda x: tf.concat([x, x], -1),
        lambda x: tf.gather(x, [0, 1], axis=1),
        lambda x: tf.gather(W, tf.cast(x, tf.int32)),
        lambda x: tf.gather(x, tf.cast(x, tf.int32), batch_dims=1),
        lambda x: tf.nn.softmax(x),
        lambda x: tf.cumsum(x, 1),
        lambda x: tf.roll(x, 1, -1),
        lambda x: tf.transpose(x[:, :, None], [0, 2, 1]),
        lambda x: tf.sqrt(tf.reduce_mean(tf.square(x))),
        lambda x: tf.reduce_sum(x) / tf.reduce_mean(x),
        lambda x: x * W + 1.0,
    ],
)
def test_rows_keep_apart(function: Callable[[tf.Tensor], tf.Tensor]) -> None:
    assert not mixes(function)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: x[0], True),
        (lambda x: x[:2] - x[2:], True),
        (lambda x: tf.split(x, 2)[1], True),
        (lambda x: tf.boolean_mask(x, x[:, 0] > 0), False),
        # Time before rows, as recurrent layers have it.
        (lambda x: tf.transpose(tf.tile(x[:, None], [1, tf.size(x[0]), 1]), [1, 0, 2])[0], False),
        (lambda x: x[:, 0], False),
    ],
)
def test_rows_are_picked_by_their_places(function: Callable[[tf.Tensor], tf.Tensor], expected: bool) -> None:
    @tf.function(autograph=False)
    def step(x: tf.Tensor, share: tf.Tensor) -> None:
        assert Reader({x.op.name}, share).picks(function(x)) is expected

    step.get_concrete_function(tf.TensorSpec([None, 3]), tf.TensorSpec([]))


def test_what_a_layer_does_is_its_own_business() -> None:
    def normalised(x: tf.Tensor) -> tf.Tensor:
        return tf.subtract(x, tf.reduce_mean(x, 0), name="inside")

    assert mixes(normalised)
    assert not mixes(normalised, ("inside",))


def test_thousands_of_operations_are_each_looked_at_once() -> None:
    looked: list[str] = []

    class Operation:
        def __init__(self, name: str, behind: list["Operation"]):
            self.name, self.behind = name, behind

    chain = [Operation("0", [])]
    for number in range(1, 5000):
        chain.append(Operation(str(number), chain[-2:]))
    behind = Behind(lambda operation: bool(looked.append(operation.name)), lambda operation: operation.behind)
    assert not behind(chain[-1])
    assert set(looked) == {operation.name for operation in chain}
    assert len(looked) < 3 * len(chain)


def test_a_loop_of_operations_ends() -> None:
    class Operation:
        def __init__(self, name: str):
            self.name, self.behind = name, list["Operation"]()

    merge, switch, back, end = (Operation(name) for name in ("merge", "switch", "back", "end"))
    merge.behind, switch.behind, back.behind = [back, end], [merge], [switch]
    assert Behind(lambda operation: operation is end, lambda operation: operation.behind)(switch)
    assert not Behind(lambda operation: False, lambda operation: operation.behind)(switch)
