"""Joins parameters into long vectors, and splits them again without a copy."""

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from nfdt.layout import Entry, Vector


def join(entries: Sequence[Entry], values: Sequence[tf.Tensor]) -> tf.Tensor:
    """Joins tensors into a vector; the padding between them is zero."""
    parts: list[tf.Tensor] = []
    for entry, value in zip(entries, values, strict=True):
        parts.append(tf.reshape(value, [-1]))
        if entry.padded > entry.length:
            parts.append(tf.zeros([entry.padded - entry.length], value.dtype))
    return tf.concat(parts, 0) if len(parts) > 1 else parts[0]


def part(entries: Sequence[Entry], vector: tf.Tensor) -> list[tf.Tensor]:
    """Splits a vector into tensors, which are views of it; parts of cut tensors are flat."""
    tensors, start = [], 0
    for entry in entries:
        tensor = tf.slice(vector, [start], [entry.length])
        tensors.append(tf.reshape(tensor, entry.shape) if entry.is_whole else tensor)
        start += entry.padded
    return tensors


def piece(entry: Entry, tensor: tf.Tensor) -> tf.Tensor:
    """Returns an entry's share of a whole tensor: the tensor itself, or a part, [length]."""
    return tensor if entry.is_whole else tf.slice(tf.reshape(tensor, [-1]), [entry.start], [entry.length])


def put_together(pieces: Sequence[tuple[Entry, tf.Tensor]]) -> tf.Tensor:
    """Returns a whole tensor, given its entries' parts in any order."""
    ordered = [tensor for _, tensor in sorted(pieces, key=lambda pair: pair[0].start)]
    return ordered[0] if len(ordered) == 1 else tf.reshape(tf.concat(ordered, 0), pieces[0][0].shape)


class FlatVariables:
    """A fused vector of parameters, and a vector of the same length for each optimizer slot."""

    def __init__(self, layout: Vector):
        self.layout = layout
        self.parameters, *self.slots = [
            tf.Variable(tf.zeros([layout.length], layout.dtype), trainable=False)
            for _ in range(1 + len(layout.entries[0].slots))
        ]

    def handles(self) -> dict[int, tf.Variable]:
        """Returns the variables by the indices of the first entry, whose update runs on the whole vector."""
        first = self.layout.entries[0]
        return dict(zip((first.variable, *first.slots), (self.parameters, *self.slots), strict=True))

    def read(self, wanted: set[int], values: dict[int, np.ndarray]) -> None:
        """Adds the wanted variables' values in this vector, by their index; for a cut variable, its part here."""
        for variable, places in self._places():
            here = {index: place for index, place in places.items() if index in wanted}
            flat = variable.numpy() if here else None
            for index, (start, entry) in here.items():
                assert flat is not None
                here_of_it = flat[start : start + entry.length]
                if entry.is_whole:
                    values[index] = here_of_it.reshape(entry.shape)
                else:
                    whole = values.setdefault(index, np.empty(entry.shape, flat.dtype))
                    whole.reshape(-1)[entry.start : entry.start + entry.length] = here_of_it

    def assign(self, values: Mapping[int, np.ndarray]) -> None:
        """Sets the given variables' entries in this vector."""
        for variable, places in self._places():
            here = {index: place for index, place in places.items() if index in values}
            if here:
                flat = np.array(variable.numpy())
                for index, (start, entry) in here.items():
                    of_it = values[index].reshape(-1)[entry.start : entry.start + entry.length]
                    flat[start : start + entry.length] = of_it
                variable.assign(flat)

    def _places(self) -> list[tuple[tf.Variable, dict[int, tuple[int, Entry]]]]:
        starts = np.cumsum([0, *(entry.padded for entry in self.layout.entries)]).tolist()
        return [
            (
                variable,
                {(e.variable, *e.slots)[kind]: (s, e) for s, e in zip(starts, self.layout.entries, strict=False)},
            )
            for kind, variable in enumerate((self.parameters, *self.slots))
        ]
