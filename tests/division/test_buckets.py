"""Gradients are exchanged in buckets, each of which waits for no more of back-propagation than computes its own gradients."""

import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fdt.division import divide
from fdt.division.exchange import Collective, Each
from fdt.program.graphs import described
from fdt.program.layout import WHOLE, Combine, Divided
from tests.helpers.together import Together

_LAYERS, _WIDTH = 5, 8
# A layer's weights.
_BYTES = _WIDTH * _WIDTH * 4


class Waiting(Together):
    """An exchange that begins when all of its values are there, as Horovod's does."""

    def reduce(self, values: Each, combine: Combine, collective: Collective) -> list[tf.Tensor]:
        together = tf.identity_n(list(itertools.chain(*values)))
        if collective.gradients:
            together = [tf.raw_ops.Snapshot(input=tensor, name="gradient") for tensor in together]
        count = len(self.ranks)
        return super().reduce([together[i * count : (i + 1) * count] for i in range(len(values))], combine, collective)


@pytest.mark.parametrize(
    ("bucket_bytes", "expected"), [(None, {5}), (_BYTES, {1, 2, 3, 4, 5}), (2 * _BYTES, {1, 2, 4, 5})]
)
def test_a_bucket_waits_for_its_own_gradients_only(
    bucket_bytes: int | None, expected: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`expected`: through how many layers back-propagation has gone when each bucket is there."""
    monkeypatch.setattr("fdt.division.buckets._LAST_BYTES", _BYTES)
    monkeypatch.setattr(Waiting, "bucket_bytes", bucket_bytes)

    @tf.function(autograph=False)
    def to_optimizer(*gradients: tf.Tensor) -> list[tf.Tensor]:
        return [tf.identity(gradient) for gradient in gradients]

    def step(x: tf.Tensor, *weights: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(weights)
            made = x
            for each in weights:
                made = tf.tanh(made @ each)
            loss = tf.reduce_sum(made)
        return list(to_optimizer(*tape.gradient(loss, weights)))

    shapes = [(4, _WIDTH), *[(_WIDTH, _WIDTH)] * _LAYERS]
    concrete = tf.function(step, autograph=False).get_concrete_function(*map(tf.TensorSpec, shapes))
    (call,) = [op for op in concrete.graph.get_operations() if "PartitionedCall" in op.type]
    inputs = [divide.Input(Divided(0, (2, 2)), shapes[0]), *(divide.Input(WHOLE, shape) for shape in shapes[1:])]
    divided = divide.divide(described(concrete.graph), Waiting(2), inputs, marks=[call.get_attr("f").name])
    assert _layers_waited_for(divided.library[-1]) == expected
    random = np.random.default_rng(0)
    given = [tf.constant(random.normal(size=shape), tf.float32) for shape in shapes]

    @tf.function(autograph=False)
    def run() -> list[tf.Tensor]:
        feeds = [divide.Feed(tf.split(given[0], 2)), *(divide.Feed([tf.identity(tensor)]) for tensor in given[1:])]
        return divided(feeds)

    for ours, plain in zip(run(), concrete(*given), strict=True):
        # Of entries up to 3, in single precision through five layers: processors differ in the last bits.
        np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-5)


def _layers_waited_for(function: Any) -> set[int]:
    """Returns, for each exchange of gradients, how many layers' back-propagation it waits for."""
    nodes = {node.name: node for node in function.node_def}

    def before(name: str, seen: set[str]) -> set[str]:
        for given in nodes[name].input:
            source = given.lstrip("^").partition(":")[0]
            if source in nodes and source not in seen:
                seen.add(source)
                before(source, seen)
        return seen

    exchanged = [name for name in nodes if nodes[name].op == "Snapshot"]
    of_worker = [{each for each in before(name, set()) if nodes[each].op == "TanhGrad"} for name in exchanged]
    # Both workers are in the graph.
    return {len(each) // 2 for each in of_worker}
