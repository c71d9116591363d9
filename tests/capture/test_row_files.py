"""The function of a row is cut at the files that it reads; the reader makes of it the rows that the data set would yield."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from fdt.base.patch import Patches
from fdt.capture.row_files import cut, reads_files
from fdt.capture.rows import RowNumbers
from fdt.capture.rowwise import NotRowsError
from fdt.errors import ProtocolError
from fdt.program.row_function import RowFiles, packed_texts, unpacked_texts
from fdt.program.row_reader import RowReader, UnreadableRowError, reader_here

NUM_ROWS = 9
CHANGING = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1)
TABLE = tf.lookup.StaticHashTable(
    tf.lookup.KeyValueTensorInitializer(tf.range(5, dtype=tf.int64), tf.constant([7, 1, 2, 9, 4], tf.int64)), -1
)


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    made = [tmp_path / f"{number} ü.txt" for number in range(NUM_ROWS)]
    for number, path in enumerate(made):
        path.write_bytes(bytes([number, number + 1]))
    return [str(path) for path in made]


def read(path: tf.Tensor) -> tf.Tensor:
    return tf.ensure_shape(tf.io.decode_raw(tf.io.read_file(path), tf.uint8), [2])


@tf.function
def read_in_a_call(path: tf.Tensor) -> tf.Tensor:
    return read(path)


def read_and_checked(path: tf.Tensor) -> tf.Tensor:
    values = read(path)
    with tf.control_dependencies([tf.debugging.assert_less(values[0], tf.constant(7, tf.uint8))]):
        return tf.identity(values)


def in_a_branch(path: tf.Tensor) -> tf.Tensor:
    return tf.cond(tf.strings.length(path) > 3, lambda: read(path), lambda: tf.zeros([2], tf.uint8))


def named_by_another(path: tf.Tensor) -> tf.Tensor:
    return read(tf.strings.join([tf.io.read_file(path), path]))


def slices(paths: list[str]) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(paths)


def looked_up(values: tf.Tensor) -> tf.Tensor:
    return TABLE.lookup(tf.cast(values, tf.int64))


def in_a_table_that_changes(path: tf.Tensor) -> tf.Tensor:
    return tf.ensure_shape(CHANGING.lookup(tf.cast(read(path), tf.int64)), [2])


def with_a_constant(paths: list[str]) -> tf.data.Dataset:
    constant = tf.constant([3, 4], tf.uint8)
    return slices(paths).map(lambda path: read(path) + constant).batch(4)


CUT: dict[str, Callable[[list[str]], tf.data.Dataset]] = {
    "a map": lambda paths: slices(paths).map(read).batch(4),
    "a call": lambda paths: slices(paths).map(read_in_a_call, num_parallel_calls=2).batch(4),
    "with a number": lambda paths: (
        tf.data.Dataset.from_tensor_slices((paths, np.arange(NUM_ROWS)))
        .map(lambda p, n: (read(p), {"n": n * 2}))
        .batch(4)
    ),
    "two maps": lambda paths: slices(paths).map(read).map(lambda v: tf.cast(v, tf.float32) / 3).batch(4),
    "batches mapped": lambda paths: slices(paths).map(read).batch(4).map(lambda v: tf.cast(v, tf.float32) / 3),
    "a path that is put together": lambda paths: (
        slices([path[:-4] for path in paths]).map(lambda stem: read(stem + ".txt")).batch(4)
    ),
    "of the path": lambda paths: slices(paths).map(lambda p: (read(p), tf.strings.length(p))).batch(4),
    "two files": lambda paths: (
        tf.data.Dataset.from_tensor_slices((paths, paths[::-1])).map(lambda p, q: read(p) + read(q)).batch(4)
    ),
    "a zip": lambda paths: tf.data.Dataset.zip((slices(paths).map(read), tf.data.Dataset.range(NUM_ROWS))).batch(4),
    "a constant": with_a_constant,
    "looked up": lambda paths: slices(paths).map(lambda p: TABLE.lookup(tf.cast(read(p), tf.int64))).batch(4),
    "looked up twice": lambda paths: (
        slices(paths).map(read).map(looked_up).batch(4).map(lambda v: tf.function(TABLE.lookup)(v))
    ),
}

NOT_CUT: dict[str, tuple[Callable[[list[str]], tf.data.Dataset], str]] = {
    "random": (
        lambda paths: slices(paths).map(lambda p: tf.cast(read(p), tf.float32) * tf.random.uniform([])),
        "random",
    ),
    "looked up in a table that changes": (lambda paths: slices(paths).map(in_a_table_that_changes), "state"),
    "a branch": (lambda paths: slices(paths).map(in_a_branch), "branch"),
    "a file that names another": (lambda paths: slices(paths).map(named_by_another), "names another"),
    "texts": (lambda paths: slices(paths).map(tf.io.read_file), "numbers of one shape"),
    "of any length": (
        lambda paths: slices(paths).map(lambda p: tf.io.decode_raw(tf.io.read_file(p), tf.uint8)),
        "shape",
    ),
    "kept": (lambda paths: slices(paths).map(read).cache(), "cache"),
    "of a process": (lambda paths: slices(["/proc/self/status"]).map(read), "no file of this machine"),
    "elsewhere": (lambda paths: slices(["gs://bucket/a"]).map(read), "no file of this machine"),
    "that no pool admits": (
        lambda paths: slices(paths).map(lambda p: tf.io.parse_tensor(tf.io.read_file(p), tf.uint8)[:2]),
        "shape|cannot travel",
    ),
}


def reader(files: RowFiles) -> RowReader:
    return reader_here(files, 2)


@pytest.mark.parametrize("name", CUT)
def test_the_reader_makes_the_rows_of_the_data_set(name: str, paths: list[str]) -> None:
    data = CUT[name](paths)
    assert reads_files(data)
    files = cut(data)
    assert b"ReadFile" not in files.function.step.meta_graph
    made = reader(files)
    batches = [np.arange(NUM_ROWS)[first : first + 4] for first in range(0, NUM_ROWS, 4)]
    for rows in batches:
        made.expect(rows)
    for rows, batch in zip(batches, data, strict=True):
        taken = made.take(rows)
        for one, other in zip(tf.nest.flatten(batch), taken, strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)
        assert made.shapes(len(rows)) == [tuple(tensor.shape) for tensor in taken]
    made.close()


@pytest.mark.parametrize("name", NOT_CUT)
def test_what_cannot_be_cut_says_why(name: str, paths: list[str]) -> None:
    make, why = NOT_CUT[name]
    with pytest.raises(NotRowsError, match=why):
        cut(make(paths).batch(4))


def test_rows_that_nobody_expected_are_read_at_once(paths: list[str]) -> None:
    made = reader(cut(CUT["a map"](paths)))
    made.expect(np.array([1, 2]))
    np.testing.assert_array_equal(made.take(np.array([5])), [[[5, 6]]])
    np.testing.assert_array_equal(made.take(np.array([1, 2])), [[[1, 2], [2, 3]]])
    np.testing.assert_array_equal(made.take(np.array([2, 1])), [[[2, 3], [1, 2]]])
    assert made.take(np.array([], np.int64))[0].shape == (0, 2)
    made.close()


def test_a_row_that_cannot_be_read_costs_its_batch_alone(paths: list[str]) -> None:
    made = reader(cut(CUT["a map"](paths)))
    Path(paths[3]).unlink()
    batches = [np.array(rows) for rows in ([1], [2, 3], [4])]
    for rows in batches:
        made.expect(rows)
    assert len(made.take(batches[0])) == 1
    with pytest.raises(UnreadableRowError, match="3 ü") as caught:
        made.take(batches[1])
    assert caught.value.step_code == tf.errors.NOT_FOUND
    np.testing.assert_array_equal(made.take(batches[2]), [[[4, 5]]])
    made.close()


def test_a_check_of_the_scripts_own_is_made(paths: list[str]) -> None:
    made = reader(cut(slices(paths).map(read_and_checked).batch(4)))
    np.testing.assert_array_equal(made.take(np.array([6])), [[[6, 7]]])
    with pytest.raises(UnreadableRowError) as caught:
        made.take(np.array([7]))
    assert caught.value.step_code == tf.errors.INVALID_ARGUMENT


def test_row_numbers_are_those_of_the_shuffled_data_set(paths: list[str]) -> None:
    patches, numbers = Patches(), RowNumbers()
    numbers.install(patches)
    try:
        data, same = (slices(paths).shuffle(NUM_ROWS, seed=3).map(read).batch(4) for _ in range(2))
        rows = numbers.of_files(data)
        assert rows is not None and rows.files is not None
        made = reader(rows.files)
        for _ in range(2):
            for batch, chosen in zip(same, rows.numbers, strict=True):
                np.testing.assert_array_equal(batch, made.take(chosen.numpy())[0])
        assert numbers.of_files(tf.data.Dataset.range(3).batch(2)) is None
        assert numbers.of_files(data.cache()) is None
        assert "cache" in numbers.reason
        # On other machines it is read again in each pass.
        assert numbers.of_files(data.cache(), is_elsewhere=True) is not None
    finally:
        patches.undo()


def test_texts_that_do_not_lie_in_their_blob_are_refused() -> None:
    packed = packed_texts([b"a", b"", "ü".encode()])
    places, texts = unpacked_texts(packed, 3)
    assert [texts[places[i] : places[i + 1]] for i in range(3)] == [b"a", b"", "ü".encode()]
    wrong = packed.copy()
    wrong[8] = 200
    for content, length in ((packed, 2), (packed, 4), (packed[:-1], 3), (wrong, 3), (packed[:7], 0)):
        with pytest.raises(ProtocolError, match="Texts do not lie"):
            unpacked_texts(content, length)
