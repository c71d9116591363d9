"""Data of the form of Keras's data sets: scikit-learn's digits, made larger, and numbers that are drawn."""

import numpy as np
from sklearn.datasets import load_digits

_NUM_TRAIN, _NUM_TEST = 640, 160


def gray():
    """Like MNIST: uint8 [n, 28, 28] and [n]."""
    digits = load_digits()
    images = np.zeros((len(digits.target), 28, 28), np.uint8)
    images[:, 2:26, 2:26] = np.repeat(np.repeat(digits.images * 255 / 16, 3, 1), 3, 2).astype(np.uint8)
    labels = digits.target.astype(np.uint8)
    cut = slice(_NUM_TRAIN), slice(_NUM_TRAIN, _NUM_TRAIN + _NUM_TEST)
    return tuple((images[part], labels[part]) for part in cut)


def color():
    """Like CIFAR: uint8 [n, 32, 32, 3] and [n, 1]."""

    def wide(images):
        return np.repeat(np.pad(images, ((0, 0), (2, 2), (2, 2)))[..., None], 3, -1)

    return tuple((wide(images), labels[:, None].astype(int)) for images, labels in gray())


def table():
    """Like the prices of houses in Boston: float64 [n, 13] and [n]."""
    x = np.random.RandomState(0).normal(size=(500, 13))
    y = x.sum(1) * 3 + 20
    return (x[:400], y[:400]), (x[400:], y[400:])


def words(num_words):
    """Like the reviews of IMDB: lists of word numbers, and 0 or 1, which some words speak for, and some against."""
    random = np.random.RandomState(0)
    leanings = random.normal(size=num_words)

    def drawn(count):
        texts = [random.randint(1, num_words, size=random.randint(10, 60)) for _ in range(count)]
        scores = np.array([leanings[text].mean() * len(text) ** 0.5 for text in texts])
        return np.array([text.tolist() for text in texts], dtype=object), (scores > 0).astype(int)

    return drawn(1_200), drawn(400)
