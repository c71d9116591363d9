"""Opens holes in a step while it is traced: gradients and a few other values pass through marked functions."""

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from fdt.v1 import program_pb2

# The `experimental_implements` mark of a hole, in the graph's function library.
HOLE = "fdt.hole"


@dataclasses.dataclass
class OpenHole:
    """An open hole: its variables, and the marked function's name."""

    kind: "program_pb2.Hole.Kind"
    function: str
    variables: tuple[tf.Variable, ...]
    sparse: tuple[bool, ...]


class Holes:
    """The holes that one trace leaves open, in the order in which they were reached.

    Attributes:
        share: float32 scalar that every hole is given.
    """

    def __init__(self, share: tf.Tensor):
        self.share = share
        self.opened: list[OpenHole] = []
        self._rate: Any = None

    def gradients(self, gradients: Sequence[Any], variables: Sequence[tf.Variable]) -> list[Any]:
        """Passes gradients through a hole.

        Args:
            gradients: tf.Tensor or tf.IndexedSlices, one for each variable.
            variables: The variables they belong to.

        Returns:
            The gradients that the hole returns, in the same structure.
        """
        sparse = tuple(isinstance(gradient, tf.IndexedSlices) for gradient in gradients)
        flat: list[tf.Tensor] = []
        for gradient in gradients:
            is_sparse = isinstance(gradient, tf.IndexedSlices)
            flat += [gradient.values, gradient.indices] if is_sparse else [tf.convert_to_tensor(gradient)]
        filled = iter(self._open(program_pb2.Hole.KIND_GRADIENTS, flat, tuple(variables), sparse))
        exchanged: list[Any] = []
        for gradient in gradients:
            result = next(filled)
            if isinstance(gradient, tf.IndexedSlices):
                result = tf.IndexedSlices(result, next(filled), gradient.dense_shape)
            exchanged.append(result)
        return exchanged

    def rate(self, rate: Any) -> tf.Tensor:
        """Passes a learning rate through a hole, where the runtime may change it."""
        rate = tf.convert_to_tensor(rate)
        if self._rate is None:
            self._rate = self._mark([tf.TensorSpec([], rate.dtype)])
            self.opened.append(OpenHole(program_pb2.Hole.KIND_RATE, self._rate.name.decode(), (), ()))
        return self._rate(self.share, rate)[0]

    def _open(
        self,
        kind: "program_pb2.Hole.Kind",
        flat: Sequence[tf.Tensor],
        variables: tuple[tf.Variable, ...],
        sparse: tuple[bool, ...],
    ) -> list[tf.Tensor]:
        # A dense gradient has its variable's shape; of a sparse one only the row's shape is known now.
        concrete = self._mark([tf.TensorSpec(t.shape, t.dtype) for t in flat])
        self.opened.append(OpenHole(kind, concrete.name.decode(), variables, sparse))
        filled = concrete(self.share, *flat)
        for tensor, like in zip(filled, flat, strict=True):
            tensor.set_shape(like.shape)
        return list(filled)

    @staticmethod
    def _mark(specs: Sequence[tf.TensorSpec]) -> Any:
        """Returns the function that marks a hole: it returns its inputs."""

        def fdt_hole(share: tf.Tensor, *tensors: tf.Tensor) -> list[tf.Tensor]:
            return [tf.identity(tensor) for tensor in tensors]

        marked = tf.function(fdt_hole, autograph=False, experimental_implements=HOLE)
        with tf.init_scope():
            return marked.get_concrete_function(tf.TensorSpec([], tf.float32), *specs)


_current_holes: ContextVar[Holes | None] = ContextVar("fdt_holes", default=None)


def current_holes() -> Holes | None:
    """Returns the holes of the step that is being traced in this context, None if there is none."""
    return _current_holes.get()


@contextmanager
def open_holes(holes: Holes) -> Iterator[Holes]:
    """Makes `holes` the `current_holes()` in this context."""
    token = _current_holes.set(holes)
    try:
        yield holes
    finally:
        _current_holes.reset(token)


def pass_hole(gradients: list[Any], variables: Sequence[Any]) -> list[Any]:
    """Passes gradients, some of which may be None, through a hole of the step that is being traced, if there is one."""
    holes = current_holes()
    if holes is None:
        return gradients
    present = [i for i, gradient in enumerate(gradients) if gradient is not None]
    if not present:
        return gradients
    exchanged = list(gradients)
    filled = holes.gradients([gradients[i] for i in present], [variables[i] for i in present])
    for i, gradient in zip(present, filled, strict=True):
        exchanged[i] = gradient
    return exchanged
