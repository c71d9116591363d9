"""How a script's data travels: arrays once, by content; afterwards only row numbers, in the order Keras shuffled them."""

import dataclasses
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.trainers.data_adapters import array_slicing
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

from fdt.errors import UnsupportedError


@dataclasses.dataclass(frozen=True)
class ArrayBatches:
    """A data set of arrays, and Keras's own adapter over its row numbers.

    Attributes:
        rows: Yields int64 row numbers batch by batch: the same adapter, given arange(n) in place of the arrays, shuffles
            the numbers exactly as it would have shuffled the data.
        arrays: C-contiguous, [num_samples, ...], in the order of the structure's leaves that are not None.
        structure: What a batch looks like to train_step: (x,), (x, y) or (x, y, sample_weight), nested.
        batch_size: Rows of a full batch.
    """

    rows: ArrayDataAdapter
    arrays: list[np.ndarray]
    structure: Any
    batch_size: int

    def specs(self) -> list[tf.TensorSpec]:
        """Returns what one batch of each array looks like, its size left open."""
        return [tf.TensorSpec([None, *a.shape[1:]], tf.dtypes.as_dtype(a.dtype)) for a in self.arrays]


def array_batches(adapter: Any, batch_factor: int = 1) -> ArrayBatches:
    """Reads what Keras made of the arguments of `fit`.

    Args:
        adapter: The DataAdapter that Keras chose.
        batch_factor: How many of the script's batches make one of ours.

    Raises:
        UnsupportedError: The data are not arrays of numbers.
    """
    if not isinstance(adapter, ArrayDataAdapter):
        raise UnsupportedError(
            f"model.fit was given data that Keras reads through {type(adapter).__name__}. This version distributes NumPy "
            "arrays and tensors. Pass the data as arrays, for example model.fit(x, y, batch_size=…)."
        )
    sliceable = array_slicing.convert_to_sliceable(adapter._inputs, target_backend="tensorflow")
    structure = keras.tree.lists_to_tuples(sliceable) if hasattr(keras.tree, "lists_to_tuples") else sliceable
    arrays = [_as_array(leaf) for leaf in keras.tree.flatten(structure) if leaf is not None]
    batch_size = adapter.batch_size * batch_factor
    rows = ArrayDataAdapter(np.arange(len(arrays[0]), dtype=np.int64), batch_size=batch_size, shuffle=adapter._shuffle)
    return ArrayBatches(rows, arrays, structure, batch_size)


def _as_array(leaf: Any) -> np.ndarray:
    if not isinstance(leaf, np.ndarray) and not (tf.is_tensor(leaf) and isinstance(leaf, tf.Tensor)):
        raise UnsupportedError(
            f"model.fit was given data of type {type(leaf).__name__}. This version distributes dense NumPy arrays and "
            "tensors; convert it, for example with .to_dense(), .to_tensor() or np.asarray()."
        )
    array = np.asarray(leaf)
    try:
        numeric = tf.dtypes.as_dtype(array.dtype) not in (tf.string, tf.resource, tf.variant)
    except TypeError:
        numeric = False
    if not numeric or array.dtype.hasobject:
        raise UnsupportedError(
            f"model.fit was given an array of dtype {array.dtype} and shape {array.shape}. Only arrays of numbers can be "
            "sent to the pool. Convert it, for example with array.astype('float32')."
        )
    return np.ascontiguousarray(array)
