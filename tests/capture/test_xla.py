"""Whether a step is compiled by XLA: where Keras chooses, GPUs decide, and those are the workers' and not the script's."""

from collections.abc import Iterator
from typing import Any

import keras
import pytest

from fdt.base.patch import Patches
from fdt.capture.keras.keras_3 import Keras3


class Eager(keras.layers.Layer):  # type: ignore[misc]
    """A layer that XLA cannot compile."""

    def __init__(self) -> None:
        super().__init__()
        self.supports_jit = False

    def call(self, x: Any) -> Any:
        return x


@pytest.fixture
def version() -> Iterator[Keras3]:
    patches, version = Patches(), Keras3()
    version.hook_fit(patches, lambda *args: None)  # type: ignore[arg-type]
    yield version
    patches.undo()


def model(*layers: Any, **options: Any) -> Any:
    made = keras.Sequential([keras.layers.Input([2]), keras.layers.Dense(1), *layers])
    made.compile("sgd", "mse", **options)
    return made


def test_where_keras_chooses_gpus_decide(version: Keras3) -> None:
    made = model()
    assert not made.jit_compile
    assert version.is_compiled_on_gpus(made)
    made.compile("sgd", "mse", jit_compile=False)
    assert not version.is_compiled_on_gpus(made)
    made.compile("sgd", "mse", jit_compile="auto")
    assert version.is_compiled_on_gpus(made)
    assert not version.is_compiled_on_gpus(model(jit_compile=False))
    assert not version.is_compiled_on_gpus(model(run_eagerly=True))
    assert not version.is_compiled_on_gpus(model(Eager()))


def test_what_the_script_says_holds(version: Keras3) -> None:
    made = model(jit_compile=True)
    assert made.jit_compile and version.is_compiled_on_gpus(made)
