"""Puts weights that workers hold in parts together where the step reads them, and for as long as it does.

A weight that is whole from its first reader to its last is whole through the forward and the backward pass, and then all
weights are at once. So no weight is put together long before its reader, and a reader that comes long after another one gets it
put together anew. How long is measured in bytes of weights that are put together in between.
"""

import collections
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fdt.program.layout import WHOLE
from fdt.program.value import Value

if TYPE_CHECKING:
    from fdt.division.walker import Walk

# A weight is put together ahead of its reader, or kept for the next one, while others of at most so many bytes are. So a small
# model has all of its weights at once, which travel in few messages.
AHEAD_BYTES = 16 << 20


class Weights:
    """The weights that a walk has put together so far, in its outermost function."""

    def __init__(self) -> None:
        self._num_bytes = 0
        # For each whole weight the bytes of all until then.
        self._made: dict[int, tuple[Value, int]] = {}
        # Of each reader: the bytes of all until then, and the nodes of its other inputs.
        self._readers: collections.deque[tuple[int, list[str]]] = collections.deque()
        # What the next weight waits for.
        self._begun: list[str] = []

    def whole(self, walk: "Walk", value: Value, others: Sequence[Value], reader: str) -> Value:
        """Returns a weight put together for an operation.

        Args:
            walk: The division.
            value: The weight in parts, or what is computed of it entry by entry.
            others: The operation's other inputs.
            reader: The operation's name.
        """
        body = walk.body
        if body.is_dry or body.outer is not None:
            # In a loop it would be put together in each round.
            return walk.converted(value, WHOLE, reader)
        kept = [each for each in value.others.get(WHOLE, ()) if walk.is_visible(each) and self._is_kept(each)]
        if not kept:
            value.others.pop(WHOLE, None)
            part = value.held(value.layout, walk.after(self._ahead(), walk.tensors(value)))
            part.key, part.others = value.key, value.others
            made = walk.converted(part, WHOLE, reader)
            self._num_bytes += value.num_bytes
            self._made[id(made)] = made, self._num_bytes
            kept = [made]
        nodes = [wire.node for other in others for wire in other.tensors if wire.body is body]
        self._readers.append((self._num_bytes, nodes))
        return kept[0]

    def _is_kept(self, whole: Value) -> bool:
        """Whether a weight that was put together is kept for a reader that comes now."""
        _, then = self._made.get(id(whole), (whole, self._num_bytes))
        return self._num_bytes - then <= AHEAD_BYTES

    def _ahead(self) -> list[str]:
        """Returns the nodes that a weight waits for: inputs of the last reader that is far enough before."""
        while self._readers and self._num_bytes - self._readers[0][0] >= AHEAD_BYTES:
            self._begun = self._readers.popleft()[1] or self._begun
        return self._begun
