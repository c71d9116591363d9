"""Turns data sets that order and batch the rows of arrays into row numbers, so that the arrays travel once.

    from_tensor_slices(arrays).shuffle(1000).batch(32)  ->  range(n).shuffle(1000).batch(32), and the arrays

What a data set is made of is read from its Python objects. Its order stays the script's: a shuffle of rows and the one of
their numbers have the same seeds, and each begins anew whenever the other does. Where that cannot be promised the data set is
streamed. `docs/decisions/0026`. What functions make of rows, and which a filter lets pass, is in `fdt.capture.mapped`; where
they read files, the workers read and compute the rows (`fdt.capture.row_files`).
"""

import dataclasses
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops.cache_op import CacheDataset
from tensorflow.python.data.ops.dataset_ops import _OptionsDataset, _VariantDataset
from tensorflow.python.data.ops.filter_op import _FilterDataset
from tensorflow.python.data.ops.iterator_ops import OwnedIterator
from tensorflow.python.data.ops.padded_batch_op import _PaddedBatchDataset
from tensorflow.python.data.ops.prefetch_op import _PrefetchDataset
from tensorflow.python.data.ops.repeat_op import _RepeatDataset
from tensorflow.python.data.ops.shard_op import _ShardDataset
from tensorflow.python.data.ops.shuffle_op import _ShuffleDataset
from tensorflow.python.data.ops.skip_op import _SkipDataset
from tensorflow.python.data.ops.take_op import _TakeDataset
from tensorflow.python.data.ops.zip_op import _ZipDataset

from fdt.base.patch import Patches
from fdt.capture import mapped, record_files, row_files
from fdt.capture.rowwise import NotRowsError
from fdt.client.data import is_numbers
from fdt.program.row_function import RowFiles

# Number of passes from which a function of rows is computed for all rows beforehand.
_WORTH_EPOCHS = 2

_NOT_ROWS = "it does more than order, batch and map rows"

# An iterator over one of these starts exactly one iterator over each of its inputs.
_ONE_PASS = (
    *mapped.BATCHES,
    *mapped.MAPS,
    *record_files.KINDS,
    _FilterDataset,
    _OptionsDataset,
    _PaddedBatchDataset,
    _PrefetchDataset,
    _ShardDataset,
    _ShuffleDataset,
    _SkipDataset,
    _TakeDataset,
    _ZipDataset,
)


@dataclasses.dataclass(frozen=True)
class Rows:
    """A data set as arrays, or functions of files, and row numbers.

    Attributes:
        structure: Nested, of arrays [num_rows, ...]; of the type specs of a batch if `files` is set.
        batch_size: Rows of a full batch.
        numbers: Yields, batch by batch, the numbers of the rows that the data set would yield: int64 [batch].
        files: What rows are made of, if the workers read them.
    """

    structure: Any
    batch_size: int
    numbers: tf.data.Dataset
    files: RowFiles | None = None

    @property
    def rows_told(self) -> int | None:
        """How many rows every batch has, if the data set's specs say so."""
        told: int | None = self.numbers.element_spec.shape[0]
        return told


def untuned(numbers: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a data set of row numbers for which TensorFlow tunes nothing.

    They need no tuning, and releasing a tuned iterator often waits until its tuner wakes up: after 1.3, 2.5, 5.1, …
    seconds, at most 60, from when it was made. An epoch of 1.4 s took 2.5 s.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return numbers.with_options(options)


class RowNumbers:
    """Counts the iterators over each of the script's shuffles, from the script's beginning on."""

    def __init__(self) -> None:
        # Number of iterators over each shuffle; None if it is not known.
        self._begun: WeakKeyDictionary[Any, int | None] = WeakKeyDictionary()
        # From each shuffle of rows to its twin, a shuffle of row numbers; and from each twin to its original.
        self._twins: WeakKeyDictionary[Any, _Shuffled] = WeakKeyDictionary()
        self._originals: WeakKeyDictionary[_Shuffled, weakref.ref[Any]] = WeakKeyDictionary()
        self._following = False
        # The rows computed by the functions that a data set ends with; None if they cannot be computed.
        self._computed: WeakKeyDictionary[Any, list[np.ndarray] | None] = WeakKeyDictionary()
        # Which rows a filter lets pass.
        self._passing: WeakKeyDictionary[Any, np.ndarray] = WeakKeyDictionary()
        # From each cache of rows in a shuffled order to its twin.
        self._kept: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        self._met: WeakSet[Any] = WeakSet()
        # Returns the row numbers of a data set whose iterators are to be followed by iterators over these; else None.
        self.to_follow: Callable[[Any], tf.data.Dataset | None] = lambda dataset: None
        # From an iterator of the script's to the one that follows it.
        self.followers: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        # Why the last data set that was analysed is no rows.
        self.reason = ""

    def install(self, patches: Patches) -> None:
        """Puts the hook in place."""
        patches.wrap(OwnedIterator, "__init__", self._begin)

    def of_files(self, dataset: Any, admitted: Collection[str] = (), is_elsewhere: bool = False) -> Rows | None:
        """Analyses a data set whose functions read files; returns None where it does more than order and batch its rows.

        Args:
            dataset: The script's.
            admitted: Operations that the pool admits besides the usual ones.
            is_elsewhere: Whether the workers are on other machines: then they read again in each pass what a cache keeps here.
        """
        self.reason = ""
        if not row_files.reads_files(dataset):
            return None
        try:
            files, batch_size = row_files.cut(dataset, admitted, is_elsewhere), _batch_size(dataset)
            numbers = untuned(self._rebuild(dataset))
            if int(dataset.cardinality()) == tf.data.UNKNOWN_CARDINALITY:
                # Keras reads data of unknown length to their end, which its step notices.
                numbers = untuned(numbers.filter(lambda _: True))
            return Rows(dataset.element_spec, batch_size, numbers, files)
        except NotRowsError as error:
            self.reason = str(error) or _NOT_ROWS
            return None

    def of(self, dataset: Any, num_batches: Callable[[int], float] = lambda epoch: epoch) -> Rows | None:
        """Analyses a data set; returns None where it does more than order and batch rows of numbers.

        Args:
            dataset: The script's.
            num_batches: Returns the number of batches that will be read, given the number in one pass over all rows.
        """
        try:
            return self._arrays(dataset, num_batches)
        except NotRowsError as error:
            self.reason = self.reason or str(error) or _NOT_ROWS
            return None

    def _arrays(self, dataset: Any, num_batches: Callable[[int], float]) -> Rows:
        if row_files.has_records(dataset):
            raise NotRowsError("its rows are records of files")
        tensors: Sequence[Any] = mapped.sources(dataset)
        batch_size = _batch_size(dataset)
        last = _last_with_functions(dataset)
        epoch = -(-len(tensors[0]) // batch_size)
        if last is not None and not self._is_worth_computing(last, num_batches(epoch) / epoch):
            raise NotRowsError("what its functions make of the rows is wanted once only")
        numbers = untuned(self._rebuild(dataset))
        if mapped.has_functions(dataset):
            tensors = self._functions_of(last)
        specs = tf.nest.flatten(dataset.element_spec)
        # A None in the structure is a leaf without a tensor, and a sparse or ragged tensor one that is no array.
        is_array = len(specs) == len(tensors) and not any(tensor.dtype == tf.variant for tensor in tensors)
        if not is_array or not all(map(is_numbers, tensors)):
            raise NotRowsError("its rows are not arrays of numbers")
        arrays = [np.asarray(tensor) for tensor in tensors]
        return Rows(tf.nest.pack_sequence_as(dataset.element_spec, arrays), batch_size, numbers)

    def _is_worth_computing(self, last: Any, epochs: float) -> bool:
        """Whether the rows of a data set that ends with functions are read more than once."""
        # For one pass it is no gain: all rows would have to be there before the first step.
        is_again = last in self._met
        self._met.add(last)
        return is_again or epochs >= _WORTH_EPOCHS

    def _functions_of(self, last: Any) -> list[np.ndarray]:
        """Returns the rows computed by the functions that a data set ends with."""
        if last not in self._computed:
            self._computed[last] = None
            self._computed[last] = mapped.computed(last)
        found = self._computed[last]
        if found is None:
            raise NotRowsError
        return found

    def _begin(
        self, original: Callable[..., None], iterator: Any, dataset: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        # Twins are made with as many iterators as were begun before this one.
        is_begun = dataset is not None and not self._following
        numbers = self.to_follow(dataset) if is_begun and tf.executing_eagerly() else None
        original(iterator, dataset, *args, **kwargs)
        if not is_begun:
            return
        # Each by itself: a shuffle begins the one beneath it at its first element, and twins are never asked for elements.
        for shuffle, is_counted in list(_shuffles(dataset)):
            begun = self._begun.get(shuffle, 0)
            is_known = is_counted and begun is not None and tf.executing_eagerly()
            self._begun[shuffle] = begun + 1 if is_known and begun is not None else None
            if is_known and numbers is None:
                self._begin_again(self._twin(shuffle), 1)
        if numbers is not None:
            self._following = True
            try:
                self.followers[iterator] = iter(numbers)
            finally:
                self._following = False

    def is_in_one_order(self, dataset: Any) -> bool:
        """Whether an iterator that was followed by one over row numbers comes to the same rows, from its first element on."""
        shuffles = [shuffle for shuffle, _ in _shuffles(dataset)]
        return len(shuffles) <= 1 and all(map(_is_seeded, shuffles))

    def begin_beneath(self, dataset: Any) -> None:
        """Begins shuffles beneath others, as an iterator that was followed would have done at its first element."""
        # Not beneath a cache: see `_rebuild`.
        for shuffle, is_counted in list(_shuffles(dataset))[1:]:
            if is_counted:
                self._begin_again(shuffle, 1)

    def _twin(self, shuffle: Any) -> Any | None:
        if isinstance(shuffle, _Shuffled):
            return self._originals[shuffle]()
        return self._twins.get(shuffle)

    def _begin_again(self, shuffle: Any | None, times: int) -> None:
        """Begins a shuffle `times` times, as its twin was begun."""
        if shuffle is None:
            return
        self._following = True
        try:
            for _ in range(times):
                iter(shuffle)
        finally:
            self._following = False

    def _rebuild(self, dataset: Any) -> Any:
        """Returns the data set of row numbers."""
        kind = type(dataset)
        if record_files.is_of_records(dataset):
            if any(_shuffles(record_files.names(dataset))) and not any(_shuffles(dataset)):
                # Data sets of lines do not show what they are made of, so no hook sees when the shuffle begins.
                raise NotRowsError("the names of its files are shuffled")
            return record_files.in_order(dataset, self._rebuild(record_files.names(dataset)))
        if kind in (*mapped.SOURCES, _ZipDataset):
            return tf.data.Dataset.range(len(mapped.sources(dataset)[0]))
        if kind not in (*_ONE_PASS, _RepeatDataset, CacheDataset):
            raise NotRowsError
        inner = self._rebuild(dataset._input_dataset)
        is_batched = inner.element_spec.shape.rank > 0
        if kind in mapped.MAPS:
            return inner
        if kind in mapped.BATCHES and not is_batched:
            return inner.batch(_value(dataset._batch_size), drop_remainder=bool(_value(dataset._drop_remainder)))
        if kind is _FilterDataset and not is_batched:
            return self._filtered(dataset, inner)
        if kind is _ShuffleDataset:
            return self._shuffled(dataset, inner)
        shuffles = [shuffle for shuffle, _ in _shuffles(dataset) if shuffle._reshuffle_each_iteration]
        # A repeat begins its shuffles inside TensorFlow, where no hook sees it.
        if kind is _RepeatDataset and any(map(_is_seeded, shuffles)):
            raise NotRowsError
        if kind is CacheDataset and _value(dataset._filename) != b"":
            raise NotRowsError
        if kind is CacheDataset and shuffles:
            # It repeats the order of its first pass, as its twin does. Neither begins the shuffles beneath it for the other:
            # they come to the same order.
            return self._kept.setdefault(dataset, inner.cache())
        plain: dict[type, Callable[[], Any]] = {
            _RepeatDataset: lambda: inner.repeat(int(_value(dataset._count))),
            _TakeDataset: lambda: inner.take(int(_value(dataset._count))),
            _SkipDataset: lambda: inner.skip(int(_value(dataset._count))),
            _ShardDataset: lambda: inner.shard(int(_value(dataset._num_shards)), int(_value(dataset._index))),
            # Of row numbers there is nothing to compute ahead or to keep.
            _OptionsDataset: lambda: inner,
            _PrefetchDataset: lambda: inner,
            CacheDataset: lambda: inner,
        }
        if kind not in plain:
            raise NotRowsError
        return plain[kind]()

    def _filtered(self, dataset: Any, inner: Any) -> Any:
        if dataset not in self._passing:
            self._passing[dataset] = mapped.passing(dataset)
        passing = tf.constant(self._passing[dataset])
        return inner.filter(lambda row: passing[row])

    def _shuffled(self, dataset: Any, inner: Any) -> Any:
        begun = self._begun.get(dataset, 0)
        # A fixed order without a seed cannot be reproduced.
        if begun is None or not (dataset._reshuffle_each_iteration or _is_seeded(dataset)):
            raise NotRowsError
        if dataset not in self._twins:
            twin = _shuffle(inner, dataset)
            self._twins[dataset], self._originals[twin] = twin, weakref.ref(dataset)
            self._begin_again(twin, begun)
        return self._twins[dataset]


class _Shuffled(_VariantDataset):  # type: ignore[misc]
    """Row numbers, shuffled with given seeds: `Dataset.shuffle` would change them, and the seeds of all shuffles after it."""

    def __init__(self, inner: Any, variant: tf.Tensor):
        self._inner = inner
        super().__init__(variant, inner.element_spec)

    def _inputs(self) -> list[Any]:
        return [self._inner]


def _shuffle(inner: Any, like: Any) -> _Shuffled:
    variant = tf.raw_ops.ShuffleDatasetV3(
        input_dataset=inner._variant_tensor,
        buffer_size=int(_value(like._buffer_size)),
        seed=int(_value(like._seed)),
        seed2=int(_value(like._seed2)),
        seed_generator=tf.raw_ops.DummySeedGenerator(),
        output_types=[tf.int64],
        output_shapes=[inner.element_spec.shape],
        reshuffle_each_iteration=like._reshuffle_each_iteration,
    )
    return _Shuffled(inner, variant)


def _shuffles(dataset: Any, is_counted: bool = True) -> Iterator[tuple[Any, bool]]:
    """Yields the shuffles that a data set is made of, and whether an iterator over it begins each of them exactly once."""
    if isinstance(dataset, _ShuffleDataset | _Shuffled):
        yield dataset, is_counted
    for inner in dataset._inputs():
        yield from _shuffles(inner, is_counted and isinstance(dataset, (*_ONE_PASS, _Shuffled)))


def _is_seeded(shuffle: Any) -> bool:
    return bool(_value(shuffle._seed) or _value(shuffle._seed2))


def _batch_size(dataset: Any) -> int:
    while type(dataset) not in mapped.BATCHES:
        if not hasattr(dataset, "_input_dataset"):
            raise NotRowsError
        dataset = dataset._input_dataset
    return int(_value(dataset._batch_size))


def _last_with_functions(dataset: Any) -> Any | None:
    """Returns the last stage of a data set with a function, after which stages only order and batch; None if there is none."""
    while not isinstance(dataset, (*mapped.MAPS, _FilterDataset, _ZipDataset)):
        if not hasattr(dataset, "_input_dataset"):
            return None
        dataset = dataset._input_dataset
    is_zip_of_rows = isinstance(dataset, _ZipDataset) and not mapped.has_functions(dataset)
    return None if is_zip_of_rows else dataset


def _value(tensor: Any) -> Any:
    value = tf.get_static_value(tensor)
    if value is None:
        raise NotRowsError
    return value.item() if hasattr(value, "item") and not isinstance(value, bytes) else value
