"""What Keras offers passes admission: a step of each layer, loss, metric and optimizer of both generations, as it travels."""

import inspect
import re
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from fdt.base.config import RunConfig
from fdt.capture.keras.keras_2 import Keras2
from fdt.capture.keras.keras_3 import Keras3
from fdt.capture.keras.train_step import trace_train_step
from fdt.capture.keras.version import KerasVersion
from fdt.errors import FdtError
from fdt.program import admission
from tests.helpers.programs import element_like
from tests.helpers.thorough import some_of

_ROWS, _CLASSES = 4, 3
# Shapes of a row, by what a layer's name holds.
_SHAPES = {"1D": (6, 4), "2D": (8, 8, 3), "3D": (4, 4, 4, 2)}
_VECTOR, _SEQUENCE, _IMAGE = (5,), (6, 4), (8, 8, 3)
# Layers that do not take a vector, where their name does not tell.
_SHAPE_OF = {
    **dict.fromkeys(["AdditiveAttention", "Attention", "GroupQueryAttention", "MultiHeadAttention"], _SEQUENCE),
    **dict.fromkeys(
        ["GRU", "LSTM", "SimpleRNN", "RNN", "CuDNNGRU", "CuDNNLSTM", "Bidirectional", "TimeDistributed"], _SEQUENCE
    ),
    **dict.fromkeys(["Masking", "Permute", "MultiHeadRelativeAttention"], _SEQUENCE),
    "ConvLSTM1D": (3, 6, 2),
    "ConvLSTM2D": (3, 6, 6, 2),
    "ConvLSTM3D": (2, 4, 4, 4, 1),
    "MelSpectrogram": (2400,),
    "STFTSpectrogram": (2400, 1),
}
# What a layer's constructor needs; a conv's filters and a pool's sizes by their kind.
_ARGUMENTS: dict[str, Callable[[Any], tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "Activation": lambda layers: (("gelu",), {}),
    "GroupQueryAttention": lambda layers: ((2, 2, 1), {}),
    "MultiHeadAttention": lambda layers: ((2, 2), {}),
    "Dense": lambda layers: ((4,), {}),
    "EinsumDense": lambda layers: (("ab,bc->ac", 4), {}),
    "Embedding": lambda layers: ((20, 4), {}),
    "ReversibleEmbedding": lambda layers: ((20, 4), {}),
    "Lambda": lambda layers: ((lambda x: x * 2.0,), {}),
    "Dot": lambda layers: ((), {"axes": 1}),
    "GroupNormalization": lambda layers: ((), {"groups": 1}),
    "SpectralNormalization": lambda layers: ((layers.Dense(4),), {}),
    "CategoryEncoding": lambda layers: ((20,), {}),
    "Discretization": lambda layers: ((), {"bin_boundaries": [0.0, 0.5]}),
    "HashedCrossing": lambda layers: ((20,), {}),
    "Hashing": lambda layers: ((20,), {}),
    "IntegerLookup": lambda layers: ((), {"vocabulary": [1, 2, 3]}),
    "StringLookup": lambda layers: ((), {"vocabulary": ["a", "b"]}),
    "TextVectorization": lambda layers: ((), {"vocabulary": ["a", "b"], "output_sequence_length": 3}),
    "Normalization": lambda layers: ((), {"mean": 1.0, "variance": 2.0}),
    "Rescaling": lambda layers: ((0.5,), {}),
    "Resizing": lambda layers: ((6, 5), {}),
    "CenterCrop": lambda layers: ((6, 6), {}),
    "RandomCrop": lambda layers: ((6, 6), {}),
    "RandomHeight": lambda layers: ((0.2,), {}),
    "RandomWidth": lambda layers: ((0.2,), {}),
    "RandomBrightness": lambda layers: ((0.2,), {}),
    "RandomContrast": lambda layers: ((0.2,), {}),
    "RandomColorDegeneration": lambda layers: ((0.2,), {}),
    "RandomColorJitter": lambda layers: ((), {"brightness_factor": 0.2, "hue_factor": 0.1}),
    "RandomGrayscale": lambda layers: ((0.5,), {}),
    "RandomHue": lambda layers: ((0.2,), {}),
    "RandomPosterization": lambda layers: ((4,), {}),
    "RandomRotation": lambda layers: ((0.2,), {}),
    "RandomSaturation": lambda layers: ((0.2,), {}),
    "RandomSharpness": lambda layers: ((0.2,), {}),
    "RandomShear": lambda layers: ((0.2, 0.2), {}),
    "RandomTranslation": lambda layers: ((0.2, 0.2), {}),
    "RandomZoom": lambda layers: ((0.2,), {}),
    "MelSpectrogram": lambda layers: ((), {"sequence_stride": 256, "fft_length": 512}),
    "ActivityRegularization": lambda layers: ((0.1, 0.1), {}),
    "Permute": lambda layers: (((2, 1),), {}),
    "RepeatVector": lambda layers: ((2,), {}),
    "Reshape": lambda layers: (((5, 1),), {}),
    "Bidirectional": lambda layers: ((layers.LSTM(3),), {}),
    "TimeDistributed": lambda layers: ((layers.Dense(3),), {}),
    "RNN": lambda layers: (
        (layers.StackedRNNCells([layers.GRUCell(3), layers.LSTMCell(3), layers.SimpleRNNCell(3)]),),
        {},
    ),
    **dict.fromkeys(["AlphaDropout", "Dropout", "GaussianDropout", "GaussianNoise"], lambda layers: ((0.3,), {})),
    **dict.fromkeys([f"SpatialDropout{n}D" for n in (1, 2, 3)], lambda layers: ((0.3,), {})),
    **dict.fromkeys(["GRU", "LSTM", "SimpleRNN", "CuDNNGRU", "CuDNNLSTM"], lambda layers: ((3,), {})),
    **dict.fromkeys([f"ConvLSTM{n}D" for n in (1, 2, 3)], lambda layers: ((2, 2), {})),
}
_IMAGES = (
    "Random",
    "Solar",
    "AugMix",
    "AutoC",
    "CenterCrop",
    "Contrast",
    "CutMix",
    "Equal",
    "MixUp",
    "RandAug",
    "Resizing",
)
_INTEGERS = ("Embedding", "ReversibleEmbedding", "CategoryEncoding", "HashedCrossing", "Hashing", "IntegerLookup")
_STRINGS = ("StringLookup", "TextVectorization")
_OF_TWO = ("Add", "Average", "Concatenate", "Dot", "Maximum", "Minimum", "Multiply", "Subtract", "HashedCrossing")
_ATTENDING = ("AdditiveAttention", "Attention", "GroupQueryAttention", "MultiHeadAttention")
# No layers of a step: bases, parts of others, models of other frameworks, what wants more than a tensor.
_NO_LAYERS = {
    "AbstractRNNCell", "BaseDenseAttention", "CuDNNGRU", "CuDNNLSTM", "DenseFeatures", "FlaxLayer", "GRUCell", "InputLayer",
    "InputSpec", "JaxLayer", "LSTMCell", "Layer", "MaxNumBoundingBoxes", "Pipeline", "PreprocessingLayer", "SequenceFeatures",
    "SimpleRNNCell", "StackedRNNCells", "TFSMLayer", "TorchModuleWrapper", "Wrapper",
}  # fmt: skip


def classes(module: Any, base: type, without: Iterable[str] = ()) -> dict[str, type]:
    """Returns a module's public classes of one kind, each under its shortest name."""
    found: dict[type, str] = {}
    for name, each in sorted(vars(module).items(), key=lambda pair: (len(pair[0]), pair[0])):
        if inspect.isclass(each) and issubclass(each, base) and each is not base and name[0].isupper():
            found.setdefault(each, name)
    return {name: each for each, name in found.items() if name not in set(without)}


def arguments(name: str, layers: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns what a layer is made with."""
    if name in _ARGUMENTS:
        return _ARGUMENTS[name](layers)
    if "Pool" in name and not name.startswith("Global"):
        return (2,), {}
    if "Conv" in name or name.startswith("Locally"):
        return ((2,), {}) if name.startswith("Depthwise") else ((2, 2), {})
    return (), {}


def shape_of(name: str) -> tuple[int, ...]:
    """Returns the shape of a row that a layer takes."""
    if name in _SHAPE_OF:
        return _SHAPE_OF[name]
    if name.startswith(_IMAGES):
        return _IMAGE
    found = re.search("[123]D", name)
    return _SHAPES[found.group()] if found else _VECTOR


def _head(layers: Any) -> Any:
    """Returns a layer that makes a vector of floats of what another layer gives."""

    class Head(layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.supports_masking = True

        def call(self, x: Any) -> Any:
            dense = tf.sparse.to_dense(x) if isinstance(x, tf.SparseTensor) else x
            x = tf.cast(dense, tf.float32)
            return tf.reduce_mean(x, list(range(1, x.shape.rank - 1))) if x.shape.rank > 2 else x

        def compute_mask(self, *_: Any) -> None:
            return None

    return Head()


def model_with(generation: Any, name: str, layer: type) -> tuple[Any, Any]:
    """Returns a model with a layer, not compiled, and a batch for it."""
    layers, shape = generation.layers, shape_of(name)
    dtype = "int32" if name in _INTEGERS else "string" if name in _STRINGS else "float32"
    if dtype == "string":
        shape = (1,) if name == "TextVectorization" else _VECTOR
    elif name == "HashedCrossing":
        shape = (1,)
    positional, named = arguments(name, layers)
    inputs = [generation.Input(shape, dtype=dtype) for _ in range(2 if name in _OF_TWO else 1)]
    made = layer(*positional, **named)
    if name in _ATTENDING:
        inside = [inputs[0], inputs[0]]
        output = made(*inside) if name in ("GroupQueryAttention", "MultiHeadAttention") else made(inside)
    else:
        output = made(inputs if len(inputs) > 1 else inputs[0])
    whole = _head(layers)(output)
    outputs = layers.Dense(_CLASSES, activation="softmax")(whole)
    batch = [np.zeros((_ROWS, *shape), object if dtype == "string" else dtype) for _ in inputs]
    return generation.Model(inputs, outputs), batch if len(batch) > 1 else batch[0]


def specs(arrays: Any) -> Any:
    """Returns a batch whose dtypes a spec can name."""
    return keras.tree.map_structure(
        lambda a: tf.TensorSpec(a.shape, tf.string if a.dtype == object else a.dtype), arrays
    )


def admitted(version: KerasVersion, model: Any, batch: Any, targets: np.ndarray) -> None:
    """Traces a compiled model's step and hands it to admission."""
    step = trace_train_step(
        RunConfig("train.py"), version, model, element_like((specs(batch), specs(targets))), None, None
    )
    admission.admit(step.program, ())


def targets(loss: str) -> np.ndarray:
    """Returns targets that a loss or a metric takes."""
    if loss.startswith("Sparse") or loss in ("CTC", "MeanIoU", "IoU", "Circle"):
        return np.ones((_ROWS, 1), "int32")
    return np.full((_ROWS, _CLASSES), 0.5, "float32")


def generations() -> list[tuple[int, Any, KerasVersion]]:
    return [(2, tf_keras, Keras2()), (3, keras, Keras3())]


@pytest.mark.thorough
@pytest.mark.parametrize("number", [2, 3])
def test_each_layer_is_admitted(number: int) -> None:
    _, generation, version = generations()[number - 2]
    refused: dict[str, str] = {}
    # Keras 2's wrapper of weights refuses Keras 2's own layers.
    without = _NO_LAYERS | ({"SpectralNormalization"} if number == 2 else set())
    for name, layer in classes(generation.layers, generation.layers.Layer, without).items():
        try:
            model, batch = model_with(generation, name, layer)
            model.compile("sgd", "mse")
            admitted(version, model, batch, targets("mse"))
        except FdtError as error:
            refused[name] = f"{type(error).__name__}: {error}"
        generation.backend.clear_session()
    assert refused == {}


@pytest.mark.parametrize(
    ("number", "kind"),
    some_of(
        [(number, kind) for number in (2, 3) for kind in ("loss", "metrics", "optimizer")],
        [(3, "optimizer"), (3, "loss")],
    ),
)
def test_each_loss_metric_and_optimizer_is_admitted(number: int, kind: str) -> None:
    _, generation, version = generations()[number - 2]
    offered = {
        "loss": lambda: classes(generation.losses, generation.losses.Loss),
        "metrics": lambda: classes(generation.metrics, generation.metrics.Metric, _NO_METRICS),
        "optimizer": lambda: classes(generation.optimizers, generation.optimizers.Optimizer, _WRAPPERS),
    }
    refused: dict[str, str] = {}
    for name, each in offered[kind]().items():
        shape = _SEQUENCE if name == "CTC" else _VECTOR
        model = generation.Sequential(
            [generation.Input(shape), generation.layers.Dense(_CLASSES, activation="softmax")]
        )
        try:
            made = each(*_MADE_WITH.get(name, ()))
            model.compile(**{"loss": "mse", "optimizer": "sgd", kind: [made] if kind == "metrics" else made})
            batch = np.zeros((_ROWS, *shape), "float32")
            admitted(version, model, batch, targets(name if kind != "optimizer" else "mse"))
        except FdtError as error:
            refused[name] = f"{type(error).__name__}: {error}"
        generation.backend.clear_session()
    assert refused == {}


# A wrapper of functions; and those that take one value, not targets and predictions.
_NO_METRICS = ("MeanMetricWrapper", "Mean", "MeanTensor", "Reduce", "Sum")
# Optimizers of optimizers.
_WRAPPERS = ("LossScaleOptimizer", "MultiOptimizer", "OptimizerMap")
_MADE_WITH: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(
        ["PrecisionAtRecall", "RecallAtPrecision", "SensitivityAtSpecificity", "SpecificityAtSensitivity"], (0.5,)
    ),
    **dict.fromkeys(["MeanIoU", "OneHotMeanIoU"], (_CLASSES,)),
    **dict.fromkeys(["IoU", "OneHotIoU"], (_CLASSES, [0])),
    "BinaryIoU": ([0],),
    "MeanRelativeError": (np.ones(_CLASSES, "float32"),),
}
