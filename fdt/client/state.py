"""Tracks the script's variables, and which of their values the pool holds."""

import itertools
from collections.abc import Collection, Sequence

import numpy as np
import tensorflow as tf

from fdt.program import variable_value
from fdt.program.packing import content, joined, shared, unpack_state
from fdt.transport.blobs import Buffer
from fdt.v1 import job_pb2, program_pb2

# Bytes that are compared at once: a comparison takes as much memory.
_COMPARED_BYTES = 1 << 20


class SharedState:
    """Finds values that changed on the client, and assigns values that changed on the pool.

    A change is found by comparing bytes, not by watching who assigns: it then does not matter whether a callback, the
    optimizer's property or TensorFlow itself wrote the variable, and comparing costs a read of the memory.

    What the pool holds is kept as a tensor that shares the variable's memory: TensorFlow copies it when the variable changes.
    """

    def __init__(self, program: program_pb2.StepProgram, variables: Sequence[tf.Variable]):
        self._specs = [v.tensor for v in program.variables]
        self._variables = list(variables)
        self._held: list[tf.Tensor | None] = [None] * len(self._variables)

    def changes(self, among: Collection[int] | None = None) -> tuple[list[int], list[np.ndarray]]:
        """Returns the indices of the variables that the pool holds differently, and their values, which must not be changed.

        Records that the pool holds these values from now on.

        Args:
            among: Ids of the variables to look at; None for all.
        """
        indices, values = [], []
        for i, variable in enumerate(self._variables):
            if among is not None and id(variable) not in among:
                continue
            now = variable_value.read(variable)
            value = shared(now)
            if not self._is_held(i, [value]):
                self._held[i] = now
                indices.append(i)
                values.append(value)
        return indices, values

    def forget(self, indices: Sequence[int]) -> None:
        """Records that the pool has other values of variables, which the client did not send."""
        for i in indices:
            self._held[i] = None

    def accept(self, state: job_pb2.State, contents: Sequence[Buffer], among: Collection[int] | None = None) -> None:
        """Assigns values that the pool sent.

        Args:
            state: Describes them.
            contents: Those of its payloads, in order.
            among: Ids of the variables to be assigned; None for all.

        Raises:
            ProtocolError: The bytes do not fit the variables.
        """
        for i, pieces in unpack_state(state, contents.__getitem__, self._specs):
            variable = self._variables[i]
            if among is not None and id(variable) not in among:
                continue
            if not self._is_held(i, pieces):
                variable_value.write(variable, joined(pieces))
                self._held[i] = variable_value.read(variable)

    def _is_held(self, index: int, pieces: Sequence[np.ndarray]) -> bool:
        held = self._held[index]
        if held is None:
            return False
        whole = shared(held)
        if len(pieces) == 1:
            return _same_bytes(pieces[0], whole)
        ends = itertools.accumulate(map(len, pieces))
        return all(_same_bytes(piece, whole[end - len(piece) : end]) for piece, end in zip(pieces, ends, strict=True))


def _same_bytes(value: np.ndarray, held: np.ndarray) -> bool:
    if value.shape != held.shape:
        return False
    if value.dtype != object and value.ctypes.data == held.ctypes.data:
        return True
    first, second = content(value), content(held)
    return first.size == second.size and all(
        np.array_equal(first[start : start + _COMPARED_BYTES], second[start : start + _COMPARED_BYTES])
        for start in range(0, first.size, _COMPARED_BYTES)
    )
