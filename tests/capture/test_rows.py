"""Row numbers of a data set: the same rows in the same order as the data set itself would yield."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

from fdt.capture.keras import keras_3
from fdt.capture.rows import RowNumbers

X = np.arange(23 * 3, dtype=np.float32).reshape(23, 3)
Y = np.arange(23, dtype=np.int64)

Make = Callable[[], tf.data.Dataset]


def slices() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X, Y))


def other_options() -> tf.data.Options:
    options = tf.data.Options()
    options.deterministic = False
    return options


def drawn_from_the_scripts_seed() -> tf.data.Dataset:
    tf.random.set_seed(7)
    return slices().shuffle(50).batch(4)


def scaled(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.cast(x, tf.float32) / 255.0, y


@tf.function
def called(x: tf.Tensor) -> tf.Tensor:
    return tf.reverse(x, [0])


@tf.function
def drawn(x: tf.Tensor) -> tf.Tensor:
    return x + tf.random.uniform([])


def asserted(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    with tf.control_dependencies([tf.debugging.assert_non_negative(y)]):
        return tf.identity(x)


def printed(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    tf.print(y)
    return x


@tf.function
def halved(x: tf.Tensor) -> tf.Tensor:
    return x / 2


@tf.function
def turned(x: tf.Tensor) -> tf.Tensor:
    return x[::-1]


def images() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(np.random.default_rng(1).integers(0, 256, [23, 6, 6, 3], np.uint8))


def windows(values: np.ndarray, targets: np.ndarray) -> tf.data.Dataset:
    """Returns rows as Keras's time series have them: numbers of places, and the whole array beside each."""
    places = tf.data.Dataset.range(len(targets)).map(lambda i: tf.range(i, i + 4))
    constant = tf.data.Dataset.from_tensors(values).repeat()
    sequences = tf.data.Dataset.zip((constant, places)).map(tf.gather)
    return tf.data.Dataset.zip((sequences, tf.data.Dataset.from_tensor_slices(targets)))


WORDS = np.array(["one", "two", "three", "four"])[Y % 4]
NUMBERS = tf.lookup.StaticHashTable(
    tf.lookup.KeyValueTensorInitializer(["one", "two"], tf.constant([1, 2], tf.int64)), 0
)


def changing() -> tf.data.Dataset:
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    return tf.data.Dataset.from_tensor_slices(WORDS).map(table.lookup).batch(4)


def counting(counter: tf.Variable) -> tf.data.Dataset:
    return slices().map(lambda x, y: (x, tf.cast(counter.assign_add(1), tf.float32))).batch(4)


TAKEN: dict[str, Make] = {
    "map to what a table has": lambda: tf.data.Dataset.from_tensor_slices(WORDS).map(NUMBERS.lookup).batch(4),
    "map of batches to what a table has": lambda: (
        tf.data.Dataset.from_tensor_slices((WORDS, Y))
        .shuffle(9, seed=4)
        .batch(4)
        .map(lambda w, y: (NUMBERS.lookup(w), y))
    ),
    "batch": lambda: slices().batch(4),
    "drop remainder": lambda: slices().batch(4, drop_remainder=True),
    "parallel batch": lambda: slices().batch(4, num_parallel_calls=2),
    "shuffle": lambda: slices().shuffle(10, seed=3).batch(4).prefetch(2),
    "shuffle, the script's seed": drawn_from_the_scripts_seed,
    "shuffle once": lambda: slices().shuffle(50, seed=3, reshuffle_each_iteration=False).repeat(2).batch(4),
    "shuffle once, kept": lambda: slices().shuffle(50, seed=3, reshuffle_each_iteration=False).cache().batch(4),
    "shuffled batches": lambda: slices().batch(4).shuffle(10, seed=3),
    "two shuffles": lambda: slices().shuffle(10, seed=3).batch(4).shuffle(3, seed=4),
    "a part": lambda: slices().skip(3).take(15).shard(2, 1).batch(4),
    "kept": lambda: slices().cache().shuffle(50, seed=1).batch(4),
    "an order that is kept": lambda: slices().shuffle(50, seed=3).cache().batch(4),
    "batches that are kept and shuffled": lambda: (
        slices().shuffle(50, seed=3).batch(4).prefetch(1).cache().shuffle(9, seed=2)
    ),
    "options": lambda: slices().with_options(other_options()).batch(4),
    "repeated": lambda: slices().repeat(2).shuffle(10, seed=3).batch(4),
    "dict": lambda: tf.data.Dataset.from_tensor_slices(({"a": X, "b": X + 1}, Y)).batch(4),
    "zip": lambda: tf.data.Dataset.zip((slices(), slices())).batch(4),
    "map": lambda: slices().map(scaled).batch(4),
    "map, in parallel": lambda: slices().map(scaled, num_parallel_calls=2).shuffle(9, seed=1).batch(4),
    "map, shuffled before": lambda: slices().shuffle(50, seed=3).map(scaled).batch(4).prefetch(1),
    "map, kept": lambda: slices().map(scaled).cache().shuffle(50, seed=3).batch(4).prefetch(1),
    "two maps": lambda: slices().map(scaled).shuffle(9, seed=3).map(lambda x, y: {"x": x, "y": y[None]}).batch(4),
    "map with a branch": lambda: slices().map(lambda x, y: (x if y > 5 else -x, tf.one_hot(y, 30))).batch(4),
    "map that calls a function": lambda: slices().map(lambda x, y: (called(x), y)).batch(4),
    "map with an assertion": lambda: slices().map(asserted).batch(4),
    "map of text": lambda: tf.data.Dataset.from_tensor_slices(Y.astype(str)).map(tf.strings.to_number).batch(4),
    "zip of maps": lambda: tf.data.Dataset.zip((slices().map(scaled), tf.data.Dataset.from_tensor_slices(X))).batch(4),
    "map of a zip": lambda: tf.data.Dataset.zip((slices(), slices())).map(lambda one, two: (one[0], two[1])).batch(4),
    "map of batches": lambda: slices().shuffle(9, seed=2).batch(4).map(lambda x, y: (x / 2, y)).prefetch(1),
    "map of whole batches": lambda: (
        slices().batch(4, drop_remainder=True).map(lambda x, y: (tf.reshape(x, [4, 3, 1]), y))
    ),
    "map of rows, then of batches": lambda: slices().map(scaled).batch(4).map(lambda x, y: (x - 1, tf.one_hot(y, 23))),
    "two maps of batches": lambda: slices().batch(4).map(scaled).shuffle(3, seed=2).map(lambda x, y: {"x": x, "y": y}),
    "map of batches of images": lambda: images().batch(4).map(lambda x: tf.image.resize(x[..., :1] / 255, [5, 4])),
    "map of batches that calls a function": lambda: slices().batch(4).map(lambda x, y: (halved(x), y)),
    "range": lambda: tf.data.Dataset.range(3, 40, 2).map(lambda i: tf.gather(X, i % 23)).batch(4),
    "windows": lambda: windows(X, Y[4:]).shuffle(9, seed=5).batch(4),
    "filter": lambda: slices().filter(lambda x, y: y % 3 > 0).shuffle(9, seed=3).batch(4),
    "filter of what functions made": lambda: (
        slices()
        .map(scaled)
        .filter(lambda x, y: x[0] > 0.1)
        .map(lambda x, y: (x, -y))
        .filter(lambda x, y: y < -9)
        .batch(4)
    ),
    "filter of shuffled rows": lambda: slices().shuffle(50, seed=3).filter(lambda x, y: y > 3).take(9).batch(4),
}

STREAMED: dict[str, Make] = {
    "map to what a table has, which may change": changing,
    "map of batches whose rows meet": lambda: slices().batch(4).map(lambda x, y: (x - tf.reduce_mean(x, 0), y)),
    "map of batches that calls what has rows meet": lambda: slices().batch(4).map(lambda x, y: (turned(x), y)),
    "map of batches to less": lambda: slices().batch(4).map(lambda x, y: (x[:2], y[:2])),
    "map of batches that draws": lambda: slices().batch(4).map(lambda x, y: (x + tf.random.uniform([3]), y)),
    "filter of batches": lambda: slices().batch(4).filter(lambda x, y: y[0] > 3),
    "filter that draws": lambda: slices().filter(lambda x, y: tf.random.uniform([]) > 0.5).batch(4),
    "filter that fails": lambda: slices().filter(lambda x, y: tf.constant([True])[y]).batch(4),
    "part of a zip, filtered": lambda: tf.data.Dataset.zip((slices().filter(lambda x, y: y > 3), slices())).batch(4),
    "range without end": lambda: tf.data.Dataset.range(np.iinfo(np.int64).max).batch(4),
    "constants alone": lambda: tf.data.Dataset.zip((tf.data.Dataset.from_tensors(X).repeat(),)).batch(4),
    "map that draws": lambda: slices().map(lambda x, y: (x + tf.random.uniform([3]), y)).batch(4),
    "map that calls what draws": lambda: slices().map(lambda x, y: (drawn(x), y)).batch(4),
    "map with a state": lambda: counting(tf.Variable(0)),
    "map in Python": lambda: slices().map(lambda x, y: tf.numpy_function(lambda v: v, [x], tf.float32)).batch(4),
    "map that prints": lambda: slices().map(printed).batch(4),
    "map to rows of many lengths": lambda: slices().map(lambda x, y: tf.range(y)).padded_batch(4),
    "map to ragged rows": lambda: slices().map(lambda x, y: (x, tf.RaggedTensor.from_row_lengths(x, [1, 2]))).batch(4),
    "map to sparse rows": lambda: slices().map(lambda x, y: tf.sparse.from_dense(x)).batch(4),
    "map of sparse rows": lambda: (
        tf.data.Dataset.from_tensor_slices(tf.sparse.from_dense(X)).map(tf.sparse.to_dense).batch(4)
    ),
    "map to nothing": lambda: slices().map(lambda x, y: (x, None)).batch(4),
    "map to text": lambda: slices().map(lambda x, y: tf.strings.as_string(y)).batch(4),
    "map that fails": lambda: slices().map(lambda x, y: (x, tf.gather(tf.constant([1]), y))).batch(4),
    "no batch": slices,
    "batches of batches": lambda: slices().batch(4).batch(2),
    "padded batch": lambda: slices().padded_batch(4),
    "generator": lambda: tf.data.Dataset.from_generator(
        lambda: iter(Y), output_signature=tf.TensorSpec([], tf.int64)
    ).batch(4),
    "a file": lambda: slices().cache("unused").batch(4),
    "strings": lambda: tf.data.Dataset.from_tensor_slices(Y.astype(str)).batch(4),
    "sparse": lambda: tf.data.Dataset.from_tensor_slices(tf.sparse.from_dense(X)).batch(2),
    "ragged": lambda: tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[1], [2, 3]])).batch(2),
    "nothing in a place": lambda: tf.data.Dataset.from_tensor_slices((X, None)).batch(2),
    "no rows": lambda: tf.data.Dataset.from_tensor_slices(Y[:0]).batch(4),
    "zip of shuffles": lambda: tf.data.Dataset.zip((slices().shuffle(9), slices())).batch(4),
    "zip of what a file keeps": lambda: tf.data.Dataset.zip((slices().cache("unused"), slices())).batch(4),
    "zip of lengths": lambda: tf.data.Dataset.zip((slices(), slices().skip(1))).batch(4),
    # In these an order is kept, or begun, where only TensorFlow itself could repeat it.
    "an order of its own, for good": lambda: slices().shuffle(50, reshuffle_each_iteration=False).batch(4),
    "shuffles begun in between": lambda: slices().shuffle(50, seed=3).repeat(2).batch(4),
}


def elements(dataset: tf.data.Dataset) -> list[list[np.ndarray]]:
    return [[leaf.numpy() for leaf in tf.nest.flatten(element)] for element in dataset]


def chosen(taken: Any) -> list[list[np.ndarray]]:
    return [[leaf[rows.numpy()] for leaf in tf.nest.flatten(taken.structure)] for rows in taken.numbers]


def thrice(epoch: int) -> float:
    return 3 * epoch


def check_same(ours: list[list[np.ndarray]], plain: list[list[np.ndarray]]) -> None:
    tf.nest.map_structure(np.testing.assert_array_equal, ours, plain)


@pytest.mark.parametrize("name", TAKEN)
def test_rows_are_those_of_the_data_set(row_numbers: RowNumbers, name: str) -> None:
    plain, dataset = TAKEN[name](), TAKEN[name]()
    taken = row_numbers.of(dataset, thrice)
    assert taken is not None
    assert taken.batch_size == 4
    for _ in range(3):
        check_same(chosen(taken), elements(plain))


@pytest.mark.parametrize("name", STREAMED)
def test_what_is_more_than_rows_is_streamed(row_numbers: RowNumbers, name: str) -> None:
    assert row_numbers.of(STREAMED[name](), thrice) is None


def test_functions_are_computed_once_if_rows_are_wanted_twice(row_numbers: RowNumbers) -> None:
    dataset = TAKEN["map"]()
    # One pass is streamed; at the second it is known that there are others.
    assert row_numbers.of(dataset) is None
    taken, again = row_numbers.of(dataset), row_numbers.of(dataset.prefetch(2))
    assert taken is not None and again is not None
    assert tf.nest.flatten(taken.structure)[0] is tf.nest.flatten(again.structure)[0]


def test_functions_that_make_much_are_streamed(row_numbers: RowNumbers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fdt.capture.mapped.LIMIT_BYTES", X.nbytes)
    assert row_numbers.of(TAKEN["map"](), thrice) is None


def both(
    use: Callable[[tf.data.Dataset, Callable[[tf.data.Dataset], Any]], list[Any]], row_numbers: RowNumbers
) -> None:
    """Checks that a script's use of a shuffled data set shows it the same with row numbers as without."""

    def by_numbers(dataset: tf.data.Dataset) -> Any:
        taken = row_numbers.of(dataset)
        return elements(dataset) if taken is None else chosen(taken)

    def shuffled() -> tf.data.Dataset:
        return slices().shuffle(50, seed=3)

    check_same(use(shuffled(), by_numbers), use(shuffled(), elements))


def test_what_the_script_iterates_over_beforehand_counts(row_numbers: RowNumbers) -> None:
    def use(dataset: tf.data.Dataset, fit: Any) -> list[Any]:
        before = elements(dataset.take(2))
        return [before, fit(dataset.batch(4)), fit(dataset.batch(4))]

    both(use, row_numbers)


def test_what_the_script_iterates_over_in_between_counts(row_numbers: RowNumbers) -> None:
    def use(dataset: tf.data.Dataset, fit: Any) -> list[Any]:
        batched = dataset.batch(4)
        seen = [
            fit(batched),
            elements(batched),
            fit(batched),
            elements(dataset.map(lambda x, y: y)),
            fit(dataset.batch(5)),
        ]
        # Begun as often as TensorFlow likes: from here on it is streamed.
        return [*seen, elements(dataset.repeat(2)), fit(batched), elements(dataset), fit(batched)]

    both(use, row_numbers)


def test_two_parts_of_one_shuffle(row_numbers: RowNumbers) -> None:
    def use(dataset: tf.data.Dataset, fit: Any) -> list[Any]:
        training, validation = dataset.skip(5).batch(4), dataset.take(5).batch(4)
        return [part for _ in range(3) for part in (fit(training), elements(validation))]

    both(use, row_numbers)


@pytest.mark.parametrize("looks", [0, 1])
def test_a_shuffle_of_shuffled_batches(row_numbers: RowNumbers, looks: int) -> None:
    def use(dataset: tf.data.Dataset, fit: Any) -> list[Any]:
        twice = dataset.batch(4).shuffle(3, seed=4)
        before = [elements(twice) for _ in range(looks)]
        return [*before, fit(twice), elements(twice), fit(twice), elements(dataset), fit(twice), fit(dataset.batch(5))]

    both(use, row_numbers)


def test_an_order_that_is_kept_is_kept_for_the_script_too(row_numbers: RowNumbers) -> None:
    def use(dataset: tf.data.Dataset, fit: Any) -> list[Any]:
        before = elements(dataset.take(2))
        kept = dataset.batch(4).cache().shuffle(3, seed=4)
        # Also by another `fit`, and where the script had begun to keep it.
        begun = dataset.batch(4).cache()
        return [before, fit(kept), fit(kept), elements(kept), fit(kept), elements(begun), fit(begun)]

    both(use, row_numbers)


def test_a_data_set_is_not_kept(row_numbers: RowNumbers) -> None:
    dataset = slices().shuffle(50, seed=3)
    assert row_numbers.of(dataset.batch(4)) is not None
    shuffle = weakref.ref(dataset)
    del dataset
    gc.collect()
    assert shuffle() is None


def test_nothing_is_tuned_where_row_numbers_are_read(row_numbers: RowNumbers) -> None:
    """Whoever lets go of a tuned iterator may have to wait for its tuner, for as long as it has been there."""
    found = row_numbers.of(slices().shuffle(50).batch(4).prefetch(tf.data.AUTOTUNE))
    assert found is not None
    orders = []
    for adapter in (keras_3._RowNumbers, ArrayDataAdapter):
        keras.utils.set_random_seed(1)
        by_keras = adapter(np.arange(23), batch_size=4, shuffle=True).get_tf_dataset()
        orders.append([batch.numpy().tolist() for batch in by_keras])
        is_tuned = by_keras.options().autotune.enabled is not False
        assert is_tuned == (adapter is ArrayDataAdapter)
    assert orders[0] == orders[1]
    assert found.numbers.options().autotune.enabled is False
