"""What `.numpy()` gives while a step is traced: a size, a constant for the gradient, and no value."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fdt.base.patch import Patches
from fdt.capture.step import unseen
from fdt.capture.step.unseen import Unseen


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    patches = Patches()
    monkeypatch.setattr(unseen, "is_own", lambda file: file == __file__)
    unseen.install(patches)
    yield
    patches.undo()


def _traced(step: Callable[[tf.Tensor], Any]) -> Any:
    def outlined(x: tf.Tensor) -> Any:
        with unseen.unseen():
            return step(x)

    return tf.function(outlined, autograph=False)(tf.constant([[1.0, 2.0], [3.0, 4.0]]))


def test_its_size_is_known() -> None:
    seen: list[Any] = []

    def step(x: tf.Tensor) -> None:
        array = x.numpy()
        seen.extend([np.shape(array), array.ndim, array.size, len(array), array.dtype])

    _traced(step)
    assert seen == [(2, 2), 2, 4, 2, np.float32]


def test_a_gradient_takes_it_for_a_constant() -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x * x.numpy()
        return tape.gradient(y, x)

    assert _traced(step).numpy().tolist() == [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize(
    "look", [np.sum, np.isnan, float, bool, str, "{}".format, list, lambda a: a == 1, lambda a: a < 1, lambda a: a * 2]
)
def test_whoever_looks_at_its_value_is_told(look: Callable[[Any], Any]) -> None:
    with pytest.raises((NotImplementedError, TypeError)):
        _traced(lambda x: look(x.numpy()))


def test_libraries_find_none() -> None:
    def step(x: tf.Tensor) -> None:
        assert isinstance(x.numpy(), Unseen)
        with pytest.raises(AttributeError):
            exec(compile("x.numpy", "library.py", "exec"), {"x": x})

    _traced(step)
