"""What is refused is named: a step under a strategy is not taken for one that no tf.function is around."""

import functools

import keras
import pytest
import tensorflow as tf

from fdt.base.patch import Patches
from fdt.capture.loop.observation import Observer
from fdt.capture.refusals import Refusals, guard_keras_optimizers, refuse_strategy
from fdt.errors import UnsupportedError


def test_a_step_that_a_strategy_runs_is_named_as_such() -> None:
    noted: list[str] = []
    patches, strategy = Patches(), tf.distribute.MirroredStrategy(["/cpu:0"])
    with strategy.scope():
        variable, optimizer = keras.Variable([1.0]), keras.optimizers.SGD()

    @tf.function
    def step(gradient: tf.Tensor) -> None:
        strategy.run(lambda g: optimizer.apply([g], [variable]), args=(gradient,))

    guard_keras_optimizers(patches, Refusals(lambda _, what, __: noted.append(what)))
    try:
        with pytest.raises(UnsupportedError, match="Two ways of distributing"):
            step(tf.constant([1.0]))
    finally:
        patches.undo()
    assert noted == ["optimizer.apply of SGD under MirroredStrategy"]


def test_an_update_by_hand_that_a_strategy_runs_is_refused() -> None:
    patches, strategy, weight = Patches(), tf.distribute.MirroredStrategy(["/cpu:0"]), tf.Variable(1.0)

    def update() -> None:
        with tf.GradientTape() as tape:
            loss = weight**2
        weight.assign_sub(0.1 * tape.gradient(loss, weight))

    Observer(lambda _: None, functools.partial(refuse_strategy, Refusals())).install(patches)
    try:
        with pytest.raises(UnsupportedError, match="gradient by variables under MirroredStrategy"):
            tf.function(lambda: strategy.run(update))()
    finally:
        patches.undo()
    assert weight.numpy() == 1.0
