"""How a script's data travel: arrays once, by content, and afterwards only row numbers; anything else batch by batch."""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf
from keras.src.trainers.data_adapters import array_slicing
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

from fdt.element import Element
from fdt.errors import UnsupportedError
from fdt.program import tensor_spec
from fdt.session import Job


class Batches(Protocol):
    """The training data of one `fit`.

    Attributes:
        adapter: What Keras iterates over.
        element: What a batch looks like to train_step: (x,), (x, y) or (x, y, sample_weight), nested.
        batch_size: Rows of a full batch; None if that is not known beforehand.
    """

    adapter: Any
    element: Element
    batch_size: int | None

    def begin(self, job: Job) -> None:
        """Starts to send what can be sent beforehand."""

    def run(self, job: Job, program: int, item: Any) -> None:
        """Runs a step, later, on what the adapter yielded."""


class ArrayBatches:
    """Arrays in memory, sent once; see `Batches`. Its adapter yields row numbers.

    Attributes:
        arrays: C-contiguous, [num_samples, ...], in the order of the element's.
    """

    def __init__(self, adapter: ArrayDataAdapter, structure: Any, arrays: list[np.ndarray], batch_size: int):
        self.arrays = arrays
        self.batch_size: int | None = batch_size
        specs = iter([tf.TensorSpec(a.shape, tf.dtypes.as_dtype(a.dtype)) for a in arrays])
        leaves = [None if leaf is None else next(specs) for leaf in keras.tree.flatten(structure)]
        self.element = element_of(keras.tree.pack_sequence_as(structure, leaves))
        # The same adapter, given arange(n) in place of the arrays, shuffles the numbers exactly as it would the data.
        rows = np.arange(len(arrays[0]), dtype=np.int64)
        self.adapter = ArrayDataAdapter(rows, batch_size=batch_size, shuffle=adapter._shuffle)
        self._binding: Future[int] | None = None

    def begin(self, job: Job) -> None:
        """Sends the arrays, in the background."""
        self._binding = job.bind_later([raw(a) for a in self.arrays], [full_spec(a) for a in self.arrays])

    def run(self, job: Job, program: int, item: Any) -> None:
        """Runs a step on the rows with these numbers."""
        assert self._binding is not None
        indices = item[0] if isinstance(item, tuple) else item
        job.run(program, self._binding.result(), indices.numpy().astype("<i8", copy=False).tobytes())


class StreamedBatches:
    """Whatever Keras can iterate over; see `Batches`. Every batch is sent with its step."""

    def __init__(self, adapter: Any, specs: Any):
        """Reads what a batch looks like.

        Args:
            adapter: Keras's.
            specs: Nested structure of type specs.
        """
        self.adapter = adapter
        self.element = element_of(specs)
        first = next(spec for spec in keras.tree.flatten(specs) if spec is not None)
        self.batch_size = first.shape[0] if first.shape.rank else None

    def begin(self, job: Job) -> None:
        """Has nothing to send yet."""

    def run(self, job: Job, program: int, item: Any) -> None:
        """Sends the batch."""
        arrays = self.element.encode(item)
        if not len(arrays[0]):
            raise UnsupportedError("A batch came without a sample; expected at least one row in each batch.")
        job.feed(program, [raw(a) for a in arrays], [full_spec(a) for a in arrays])


def keras_batches(adapter: Any, num_together: int = 1) -> Batches:
    """Reads what Keras made of the arguments of `fit`.

    Args:
        adapter: The DataAdapter that Keras chose.
        num_together: How many of the script's batches make one of ours.

    Raises:
        UnsupportedError: The data cannot be sent, or not so.
    """
    structure = _dense_arrays(adapter) if isinstance(adapter, ArrayDataAdapter) else None
    if structure is not None:
        arrays = [np.ascontiguousarray(leaf) for leaf in keras.tree.flatten(structure) if leaf is not None]
        return ArrayBatches(adapter, structure, arrays, adapter.batch_size * num_together)
    if num_together > 1:
        raise UnsupportedError(
            f"--batch per-worker needs data in arrays of numbers; model.fit was given data that Keras reads through "
            f"{type(adapter).__name__}. Leave the option out, and give the data set the larger batch."
        )
    return StreamedBatches(adapter, adapter.get_tf_dataset().element_spec)


def element_of(specs: Any) -> Element:
    """Returns the element whose structure these type specs have, as Keras sees structures."""
    return Element(specs, keras.tree.flatten, keras.tree.pack_sequence_as)


def raw(array: np.ndarray) -> Any:
    """Returns the bytes of a C-contiguous array."""
    return array.reshape(-1).view(np.uint8)


def full_spec(array: np.ndarray) -> Any:
    """Returns the description of an array, its whole shape included."""
    return tensor_spec(tf.TensorSpec(array.shape, tf.dtypes.as_dtype(array.dtype), name="array"))


def _dense_arrays(adapter: ArrayDataAdapter) -> Any | None:
    """Returns the structure of the adapter's arrays; None if one of them is not an array of numbers."""
    sliceable = array_slicing.convert_to_sliceable(adapter._inputs, target_backend="tensorflow")
    structure = keras.tree.lists_to_tuples(sliceable) if hasattr(keras.tree, "lists_to_tuples") else sliceable
    leaves: Sequence[Any] = keras.tree.flatten(structure)
    return structure if all(leaf is None or _is_numbers(leaf) for leaf in leaves) else None


def _is_numbers(leaf: Any) -> bool:
    if not isinstance(leaf, np.ndarray) and not (tf.is_tensor(leaf) and isinstance(leaf, tf.Tensor)):
        return False
    array = np.asarray(leaf)
    try:
        return tf.dtypes.as_dtype(array.dtype) not in (tf.string, tf.resource, tf.variant) and not array.dtype.hasobject
    except TypeError:
        return False
