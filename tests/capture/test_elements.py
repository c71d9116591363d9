"""Elements of data sets of files: nobody reads one until somebody looks at it, and then it is what plain python yields."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from fdt.base.config import RunConfig
from fdt.base.patch import Patches
from fdt.capture.loop.elements import Elements, ElementTensor, element_of
from fdt.capture.rows import RowNumbers
from fdt.errors import UnsupportedError

NUM_FILES, LENGTH = 11, 3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    values = np.random.default_rng(0).normal(size=(NUM_FILES, LENGTH)).astype("float32")
    for number, value in enumerate(values):
        (tmp_path / f"{number:02}").write_bytes(value.tobytes())
    return tmp_path


@pytest.fixture
def hooks() -> Iterator[tuple[RowNumbers, Elements]]:
    patches, row_numbers = Patches(), RowNumbers()
    elements = Elements(row_numbers, RunConfig("train.py"))
    elements.install(patches)
    row_numbers.install(patches)
    # From a seed of the script's, shuffles draw theirs.
    tf.random.set_seed(None)
    yield row_numbers, elements
    patches.undo()


def read(path: tf.Tensor) -> tf.Tensor:
    return tf.ensure_shape(tf.io.decode_raw(tf.io.read_file(path), tf.float32), [LENGTH])


def rows(folder: Path) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((sorted(map(str, folder.glob("*"))), np.arange(NUM_FILES)))


def read_in_order(folder: Path) -> tf.data.Dataset:
    return rows(folder).map(lambda path, label: (read(path), label)).batch(4)


def shuffled(folder: Path) -> tf.data.Dataset:
    return rows(folder).shuffle(20, seed=3).map(lambda path, label: {"x": read(path), "y": label}).batch(4)


def shuffled_twice(folder: Path) -> tf.data.Dataset:
    data = rows(folder).shuffle(20, seed=3).map(lambda path, label: (read(path), label))
    return data.shuffle(5, seed=4).batch(4, drop_remainder=True).prefetch(1)


DATA = [read_in_order, shuffled, shuffled_twice]


def flat(element: Any) -> list[np.ndarray]:
    return [np.asarray(tensor) for tensor in tf.nest.flatten(element)]


def passes(data: tf.data.Dataset, number: int) -> list[list[np.ndarray]]:
    return [flat(element) for _ in range(number) for element in data]


@pytest.mark.parametrize("make", DATA)
def test_what_is_looked_at_is_what_plain_python_yields(
    make: Callable[[Path], Any], folder: Path, hooks: tuple[RowNumbers, Elements]
) -> None:
    """To the last bit, and in its order, pass after pass, whether or not earlier passes were looked at."""
    row_numbers, _ = hooks
    patches = row_numbers.to_follow
    row_numbers.to_follow = lambda dataset: None
    plain = passes(make(folder), 4)
    row_numbers.to_follow = patches
    data = make(folder)
    for _ in data:
        pass
    found = passes(data, 3)
    per_pass = len(plain) // 4
    for one, other in zip(plain[per_pass:], found, strict=True):
        for mine, theirs in zip(one, other, strict=True):
            assert mine.dtype == theirs.dtype and np.array_equal(mine, theirs)


def test_nobody_reads_what_nobody_looks_at(folder: Path, hooks: tuple[RowNumbers, Elements]) -> None:
    taken = iter(read_in_order(folder))
    x, y = next(taken)
    for path in folder.glob("*"):
        path.unlink()
    assert [type(tensor) for tensor in (x, y)] == [ElementTensor] * 2
    assert (x.shape, x.dtype, y.shape, y.dtype) == ((4, LENGTH), tf.float32, (4,), tf.int64)
    assert tf.is_tensor(x) and len(list(taken)) == 2
    with pytest.raises(tf.errors.NotFoundError):
        x.numpy()


def test_a_function_is_traced_for_an_element_without_reading_it(
    folder: Path, hooks: tuple[RowNumbers, Elements]
) -> None:
    x, _ = next(iter(read_in_order(folder)))
    for path in folder.glob("*"):
        path.unlink()
    traced = tf.function(lambda given: given * 2).get_concrete_function(x)
    assert traced.inputs[0].shape == (4, LENGTH)


def test_an_element_is_recognised_where_all_data_are_of_it(folder: Path, hooks: tuple[RowNumbers, Elements]) -> None:
    (x, y), (other, _) = itertools.islice(read_in_order(folder), 2)
    element = element_of([x, y])
    assert element is not None and element is element_of([y]) and element.numbers.numpy().tolist() == [0, 1, 2, 3]
    assert element_of([x, other]) is element_of([x, tf.ones([])]) is element_of([x[:2]]) is element_of([]) is None


def test_who_looks_at_most_elements_gets_them_read(folder: Path, hooks: tuple[RowNumbers, Elements]) -> None:
    data = rows(folder).map(lambda path, label: (read(path), label)).batch(2)
    kinds = []
    for x, _ in data:
        kinds.append(isinstance(x, ElementTensor))
        x.numpy()
    assert kinds == [True] * 3 + [False] * 3
    # The next pass begins with read ones.
    assert [isinstance(x, ElementTensor) for x, _ in data] == [False] * 6


def test_a_script_that_looks_now_and_then_gets_pending_elements(
    folder: Path, hooks: tuple[RowNumbers, Elements]
) -> None:
    data = read_in_order(folder).repeat(6)
    kinds = []
    for number, (x, _) in enumerate(data):
        kinds.append(isinstance(x, ElementTensor))
        if number % 4 == 0:
            x.numpy()
    assert kinds == [True] * 18


@pytest.mark.parametrize("num_taken", [0, 2])
def test_another_user_of_an_iterator_finds_it_where_the_script_is(
    num_taken: int, folder: Path, hooks: tuple[RowNumbers, Elements]
) -> None:
    plain = passes(shuffled(folder), 1)

    @tf.function
    def taken_in_graph(iterator: Any) -> Any:
        return next(iterator)

    data = shuffled(folder)
    for use in (taken_in_graph, lambda iterator: iterator.get_next_as_optional().get_value()):
        iterator = iter(data)
        expected = plain if use is taken_in_graph else None
        before = [next(iterator) for _ in range(num_taken)]
        found = flat(use(iterator))
        if expected is not None:
            assert all(map(np.array_equal, found, expected[num_taken]))
            assert [flat(element)[1].tolist() for element in before] == [e[1].tolist() for e in expected[:num_taken]]
            assert len(list(iterator)) == len(expected) - num_taken - 1


def test_an_order_that_cannot_be_gone_on_with_is_refused(folder: Path, hooks: tuple[RowNumbers, Elements]) -> None:
    iterator = iter(rows(folder).shuffle(20).map(lambda path, label: (read(path), label)).batch(4))
    next(iterator)
    with pytest.raises(UnsupportedError, match="without a seed"):
        iterator.get_next_as_optional()


def test_keras_reads_for_itself(folder: Path, hooks: tuple[RowNumbers, Elements]) -> None:
    row_numbers, _ = hooks
    model = keras.Sequential([keras.Input((LENGTH,)), keras.layers.Dense(1)])
    assert model.predict(read_in_order(folder).map(lambda x, y: x), verbose=0).shape == (NUM_FILES, 1)
    assert not row_numbers.followers


def test_of_data_that_are_no_rows_of_files_a_loop_gets_what_there_is(hooks: tuple[RowNumbers, Elements]) -> None:
    data = tf.data.Dataset.from_tensor_slices(np.arange(6)).batch(2)
    assert [type(x) is not ElementTensor and x.numpy().tolist() for x in data] == [[0, 1], [2, 3], [4, 5]]
