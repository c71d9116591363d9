"""Tracks the script's variables, and which of their values the pool holds."""

from collections.abc import Collection, Sequence

import numpy as np
import tensorflow as tf

from fdt.program.packing import as_array, content, pack, unpack
from fdt.v1 import program_pb2


class SharedState:
    """Finds values that changed on the client, and assigns values that changed on the pool.

    A change is found by comparing bytes, not by watching who assigns: it then does not matter whether a callback, the
    optimizer's property or TensorFlow itself wrote the variable, and comparing costs a read of the memory.
    """

    def __init__(self, program: program_pb2.StepProgram, variables: Sequence[tf.Variable]):
        self._specs = [v.tensor for v in program.variables]
        self._variables = list(variables)
        self._held: list[np.ndarray | None] = [None] * len(self._variables)

    def changes(self, among: Collection[int] | None = None) -> tuple[list[int], bytearray]:
        """Returns the indices of the variables that the pool holds differently, and their values packed.

        Records that the pool holds these values from now on.

        Args:
            among: Ids of the variables to look at; None for all.
        """
        indices, values = [], []
        for i, variable in enumerate(self._variables):
            if among is not None and id(variable) not in among:
                continue
            now = as_array(variable)
            if not _same_bytes(now, self._held[i]):
                value = now.copy()
                self._held[i] = value
                indices.append(i)
                values.append(value)
        return indices, pack(values)

    def forget(self, indices: Sequence[int]) -> None:
        """Records that the pool has other values of variables, which the client did not send."""
        for i in indices:
            self._held[i] = None

    def accept(
        self, indices: Sequence[int], packed: bytes | bytearray | memoryview, among: Collection[int] | None = None
    ) -> None:
        """Assigns values that the pool sent.

        Args:
            indices: Indices of the variables.
            packed: Their values.
            among: Ids of the variables to be assigned; None for all.

        Raises:
            ProtocolError: The bytes do not fit the variables.
        """
        for i, value in zip(indices, unpack(packed, [self._specs[i] for i in indices]), strict=True):
            if among is not None and id(self._variables[i]) not in among:
                continue
            if not _same_bytes(value, self._held[i]):
                self._variables[i].assign(value)
                self._held[i] = value


def _same_bytes(value: np.ndarray, held: np.ndarray | None) -> bool:
    if held is None or value.shape != held.shape:
        return False
    return np.array_equal(content(value), content(held))
