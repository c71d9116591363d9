"""Functions of a batch that keep its rows apart, and such that do not, or of which it is not known."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fdt.capture.rowwise import is_rowwise

ROWS = 33
MEAN = tf.constant([0.1, 0.2, 0.3])


@tf.function
def scaled(x: tf.Tensor) -> tf.Tensor:
    return x / 255.0


@tf.function
def turned(x: tf.Tensor) -> tf.Tensor:
    return tf.reverse(x, [0])


# Of images [batch, 5, 4, 3], numbers [batch] and words [batch, 2].
APART: dict[str, Callable[[Any, Any, Any], Any]] = {
    "as it is": lambda image, number, words: (image, number, words),
    "scaled": lambda image, number, words: tf.cast(image, tf.float32) / 255.0 - MEAN,
    "a row of its own beside each": lambda image, number, words: image * tf.ones([1, 5, 4, 3]),
    "called": lambda image, number, words: scaled(image),
    "one hot": lambda image, number, words: tf.one_hot(number, 40),
    "flat": lambda image, number, words: tf.reshape(image, [-1, 60]),
    "flat, by its size": lambda image, number, words: tf.reshape(image, [tf.shape(image)[0], 60]),
    "columns": lambda image, number, words: (words[:, 0], words[:, 1:], image[..., 0], image[:, ::2, 1:3]),
    "a dimension": lambda image, number, words: (
        number[:, None],
        tf.expand_dims(image, -1),
        tf.squeeze(image[:, :1], 1),
    ),
    "beside each other": lambda image, number, words: (
        tf.stack([number, number], 1),
        tf.concat([image, image], -1),
        tf.split(image, 5, 1)[0],
        tf.unstack(words, axis=1)[1],
    ),
    "one of two": lambda image, number, words: tf.where(number > 3, number, -number),
    "turned": lambda image, number, words: (tf.transpose(image, [0, 2, 1, 3]), tf.image.flip_left_right(image)),
    "padded": lambda image, number, words: tf.pad(image, [[0, 0], [1, 1], [2, 0], [0, 0]]),
    "tiled": lambda image, number, words: tf.tile(image, [1, 2, 1, 3]),
    "largest": lambda image, number, words: (tf.reduce_max(image, [1, 2]), tf.argmax(words, 1)),
    "resized": lambda image, number, words: (tf.image.resize(image, [7, 3]), tf.image.resize(image, [3, 9], "nearest")),
    "looked up": lambda image, number, words: tf.gather(tf.constant([[1.0, 2.0], [3.0, 4.0]]), number % 2),
    "picked columns": lambda image, number, words: tf.gather(image, [2, 1], axis=2),
    "checked": lambda image, number, words: asserted(number),
    "counted": lambda image, number, words: counted(words, 9),
    "clipped": lambda image, number, words: tf.clip_by_value(image, 1.0, 2.0),
}

NOT_APART: dict[str, Callable[[Any, Any, Any], Any]] = {
    "less the mean": lambda image, number, words: image - tf.reduce_mean(image, 0),
    "tiled": lambda image, number, words: tf.tile(image, [2, 1, 1, 1])[: tf.shape(image)[0]],
    "less the first": lambda image, number, words: words - words[:1],
    "turned": lambda image, number, words: image[::-1],
    "called": lambda image, number, words: turned(image),
    "some": lambda image, number, words: image[:4],
    "all pairs": lambda image, number, words: number[:, None] - number,
    "sums so far": lambda image, number, words: tf.cumsum(number),
    "beneath each other": lambda image, number, words: tf.concat([words, words], 0),
    "mixed up": lambda image, number, words: tf.reshape(tf.transpose(image, [1, 0, 2, 3]), [-1, 60]),
    "in the other order": lambda image, number, words: tf.reshape(words, [2, -1]),
    "in halves": lambda image, number, words: tf.reshape(words, [-1, 1]),
    "numbered": lambda image, number, words: number + tf.range(tf.shape(number)[0]),
    "the size": lambda image, number, words: words / tf.shape(words)[0],
    "repeated": lambda image, number, words: tf.tile(tf.reduce_mean(image, 0)[None], [tf.shape(image)[0], 1, 1, 1]),
    "rows beside columns": lambda image, number, words: words[:, 0] * tf.ones([ROWS, 1], tf.int32),
    "one for each place": lambda image, number, words: number * tf.range(ROWS),
    "sorted": lambda image, number, words: tf.sort(number),
    "looked up in rows": lambda image, number, words: tf.gather(image, number),
    "counted up to the largest": lambda image, number, words: counted(words, None),
    "counted as rows": lambda image, number, words: counted(number, 9)[:ROWS],
    "counted with weights": lambda image, number, words: counted(words, 9, tf.cast(words, tf.float32)),
    "the largest": lambda image, number, words: number - tf.reduce_max(number),
    "nothing of the rows": lambda image, number, words: tf.ones([ROWS]),
    "a number": lambda image, number, words: tf.constant(1.0),
    # In them a row may round otherwise at another place.
    "sums": lambda image, number, words: tf.reduce_sum(image, [1, 2]),
    "exponentials": lambda image, number, words: tf.exp(image),
    "products": lambda image, number, words: tf.matmul(tf.reshape(image, [-1, 60]), tf.ones([60, 2])),
}


def counted(numbers: tf.Tensor, columns: int | None, weights: tf.Tensor | None = None) -> tf.Tensor:
    """Returns how often each row has each number, as Keras's layers compute it."""
    largest = {} if columns is None else {"minlength": columns, "maxlength": columns}
    found = tf.math.bincount(numbers, weights=weights, axis=-1, dtype=tf.float32, **largest)
    return found if numbers.shape.rank == 1 else tf.ensure_shape(found, [None, 9])


def asserted(number: tf.Tensor) -> tf.Tensor:
    with tf.control_dependencies([tf.debugging.assert_less(tf.reduce_sum(number), 100_000)]):
        return tf.identity(number)


def traced(function: Callable[..., Any], size: int | None) -> Any:
    specs = [([5, 4, 3], tf.float32), ([], tf.int32), ([2], tf.int32)]
    return tf.function(function).get_concrete_function(
        *(tf.TensorSpec([size, *shape], dtype) for shape, dtype in specs)
    )


@pytest.mark.parametrize("size", [None, ROWS])
@pytest.mark.parametrize("name", APART)
def test_rows_apart(name: str, size: int | None) -> None:
    function = traced(APART[name], size)
    assert is_rowwise(function, ROWS)
    draw = np.random.default_rng(0)
    arrays = [
        draw.normal(size=(ROWS, 5, 4, 3)).astype(np.float32),
        draw.integers(0, 9, [ROWS]),
        draw.integers(0, 9, [ROWS, 2]),
    ]
    order = draw.permutation(ROWS)

    def called(rows: np.ndarray) -> list[np.ndarray]:
        given = [tf.constant(array[rows], spec.dtype) for array, spec in zip(arrays, function.inputs, strict=False)]
        return [found.numpy() for found in tf.nest.flatten(function(*given))]

    for plain, mixed in zip(called(np.arange(ROWS)), called(order), strict=True):
        np.testing.assert_array_equal(plain[order], mixed)


@pytest.mark.parametrize("size", [None, ROWS])
@pytest.mark.parametrize("name", NOT_APART)
def test_not_known_to_be_apart(name: str, size: int | None) -> None:
    # Where all batches have one size, that is a number like others.
    assert is_rowwise(traced(NOT_APART[name], size), ROWS) == (name == "the size" and size is not None)


VOCABULARY = tf.lookup.StaticHashTable(
    tf.lookup.KeyValueTensorInitializer(["a", "b", "cc"], tf.constant([2, 3, 4], tf.int64)), 1
)


def numbers_of(words: Any, length: int | None = 3) -> tf.Tensor:
    """Returns the numbers of each row's words, padded."""
    return words.with_values(VOCABULARY.lookup(words.values)).to_tensor(shape=[None, length])


def of_other_rows(words: Any) -> Any:
    row_of_word = tf.reverse(words.value_rowids(), [0])
    return tf.RaggedTensor.from_value_rowids(words.values, tf.sort(row_of_word), words.nrows())


# Of texts [batch], and others [batch].
TEXTS_APART: dict[str, Callable[[Any, Any], Any]] = {
    "looked up": lambda text, other: VOCABULARY.lookup(text),
    "in words": lambda text, other: numbers_of(tf.strings.split(text)),
    "in words of small letters": lambda text, other: numbers_of(
        tf.strings.split(tf.strings.regex_replace(tf.strings.lower(text), "[!,]", ""))
    ),
    "both in words": lambda text, other: (numbers_of(tf.strings.split(text)), numbers_of(tf.strings.split(other), 2)),
    "hashed": lambda text, other: tf.strings.to_hash_bucket_fast(text, 50),
    "as long as they are": lambda text, other: tf.strings.length(tf.strings.strip(text)),
}
TEXTS_NOT_APART: dict[str, Callable[[Any, Any], Any]] = {
    "as long as the longest": lambda text, other: numbers_of(tf.strings.split(text), None),
    "words of one in rows of the other": lambda text, other: numbers_of(
        tf.RaggedTensor.from_value_rowids(
            tf.strings.split(text).values, tf.strings.split(other).value_rowids(), tf.strings.split(other).nrows()
        )
    ),
    "words in other rows": lambda text, other: numbers_of(of_other_rows(tf.strings.split(text))),
    "all words in a row": lambda text, other: VOCABULARY.lookup(tf.strings.split(text).values)[: tf.shape(text)[0]],
    "which word it is": lambda text, other: tf.raw_ops.StringSplitV2(input=text, sep="", maxsplit=-1)[0][:ROWS, 1],
    "sorted": lambda text, other: tf.sort(tf.strings.length(text)),
}


def traced_for_texts(function: Callable[..., Any]) -> Any:
    spec = tf.TensorSpec([None], tf.string)
    return tf.function(function).get_concrete_function(spec, spec)


@pytest.mark.parametrize("name", TEXTS_APART)
def test_texts_apart(name: str) -> None:
    function = traced_for_texts(TEXTS_APART[name])
    assert is_rowwise(function, ROWS)
    draw = np.random.default_rng(0)
    words = ["a", "b", "A!", "cc", "dd,", ""]
    texts = [np.array([" ".join(draw.choice(words, n % 5)) for n in range(ROWS)], object) for _ in range(2)]
    order = draw.permutation(ROWS)
    plain, mixed = (
        [found.numpy() for found in tf.nest.flatten(function(*(tf.constant(text[rows]) for text in texts)))]
        for rows in (np.arange(ROWS), order)
    )
    for one, other in zip(plain, mixed, strict=True):
        np.testing.assert_array_equal(one[order], other)


@pytest.mark.parametrize("name", TEXTS_NOT_APART)
def test_texts_that_are_not_known_to_be_apart(name: str) -> None:
    assert not is_rowwise(traced_for_texts(TEXTS_NOT_APART[name]), ROWS)
