"""The holes of a step while it is being traced: where gradients, and a few other values, pass through a marked function."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from fdt.messages import program_pb2

# The `experimental_implements` mark of a hole, in the graph's function library.
HOLE = "fdt.hole"


@dataclasses.dataclass
class OpenHole:
    """A hole as the tracer leaves it: whose gradients, and the marked function's name."""

    kind: "program_pb2.Hole.Kind"
    function: str
    variables: tuple[tf.Variable, ...]
    sparse: tuple[bool, ...]
    weighted: bool = False


class Holes:
    """The holes that one trace leaves open, in the order in which they were reached.

    Attributes:
        share: float32 scalar, this worker's part of the global batch.
        weighted: Whether the step weighs its loss by the share, so that its gradients come weighted to a hole.
        are_alike: Tells of the indices of a sparse gradient whether all workers have the same, so that its values are added up.
    """

    def __init__(self, share: tf.Tensor):
        self.share = share
        self.weighted = False
        self.are_alike: Callable[[tf.Tensor], bool] = lambda indices: False
        self.opened: list[OpenHole] = []
        self._rate: Any = None

    def gradients(self, gradients: Sequence[Any], variables: Sequence[tf.Variable]) -> list[Any]:
        """Passes gradients through a hole.

        Args:
            gradients: tf.Tensor or tf.IndexedSlices, one for each variable.
            variables: The variables they belong to.

        Returns:
            The same structure, as it comes out of the hole.
        """
        sparse = tuple(isinstance(g, tf.IndexedSlices) and not self.are_alike(g.indices) for g in gradients)
        flat: list[tf.Tensor] = []
        for gradient, is_sparse in zip(gradients, sparse, strict=True):
            if isinstance(gradient, tf.IndexedSlices):
                flat += [gradient.values, gradient.indices] if is_sparse else [gradient.values]
            else:
                flat.append(tf.convert_to_tensor(gradient))
        filled = iter(self._open(program_pb2.Hole.KIND_GRADIENTS, flat, tuple(variables), sparse))
        exchanged: list[Any] = []
        for gradient, is_sparse in zip(gradients, sparse, strict=True):
            result = next(filled)
            if isinstance(gradient, tf.IndexedSlices):
                indices = next(filled) if is_sparse else gradient.indices
                result = tf.IndexedSlices(result, indices, gradient.dense_shape)
            exchanged.append(result)
        return exchanged

    def sum(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the tensor summed over the workers of the step (one worker: itself). It carries no gradient."""
        return self._open(program_pb2.Hole.KIND_SUM, [tf.stop_gradient(tensor)], (), ())[0]

    def largest(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns, entry by entry, the largest that a worker of the step has; whole numbers of a known shape."""
        return self._open(program_pb2.Hole.KIND_LARGEST, [tensor], (), ())[0]

    def rows(self, tensor: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the rows of all workers of the step, in the order of the batch, and the number of this worker's first.

        Args:
            tensor: [rows, ...].
        """
        # What comes out has another number of rows.
        spec = tf.TensorSpec(tf.TensorShape([None]).concatenate(tensor.shape[1:]), tensor.dtype)
        concrete = self._mark([spec], lambda rows: [tf.identity(rows), tf.constant(0)])
        self.opened.append(OpenHole(program_pb2.Hole.KIND_ROWS, concrete.name.decode(), (), ()))
        gathered, first = concrete(self.share, tf.stop_gradient(tensor))
        # Which the graph must not conclude to be what went in.
        return tf.compat.v1.placeholder_with_default(gathered, spec.shape), first

    def needs_all_rows(self, reason: str) -> None:
        """Hears that the step computes something else of a part of a batch than of all of it."""

    def rate(self, rate: Any) -> tf.Tensor:
        """Returns a learning rate as the runtime wants it."""
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
        # A dense gradient has its variable's shape; of a sparse one only the width is known beforehand.
        concrete = self._mark([tf.TensorSpec(t.shape, t.dtype) for t in flat])
        self.opened.append(OpenHole(kind, concrete.name.decode(), variables, sparse, self.weighted))
        filled = concrete(self.share, *flat)
        for tensor, like in zip(filled, flat, strict=True):
            tensor.set_shape(like.shape)
        return list(filled)

    @staticmethod
    def _mark(specs: Sequence[tf.TensorSpec], passes: Callable[..., list[tf.Tensor]] | None = None) -> Any:
        """Returns the function that stands for a hole: it passes on what it gets, or what comes of it with one worker."""

        def fdt_hole(share: tf.Tensor, *tensors: tf.Tensor) -> list[tf.Tensor]:
            return [tf.identity(tensor) for tensor in tensors] if passes is None else passes(*tensors)

        marked = tf.function(fdt_hole, autograph=False, experimental_implements=HOLE)
        with tf.init_scope():
            return marked.get_concrete_function(tf.TensorSpec([], tf.float32), *specs)


_current_holes: ContextVar[Holes | None] = ContextVar("fdt_holes", default=None)


def current_holes() -> Holes | None:
    """Returns the holes of the step that is being traced in this context, None if there is none."""
    return _current_holes.get()


@contextmanager
def open_holes(holes: Holes) -> Iterator[Holes]:
    """Within it, they are the `current_holes()`, which collect what one trace leaves open."""
    token = _current_holes.set(holes)
    try:
        yield holes
    finally:
        _current_holes.reset(token)


def pass_hole(gradients: list[Any], variables: Sequence[Any]) -> list[Any]:
    """Returns gradients, of which some may be None, as they come out of a hole of the step that is being traced, if one is."""
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
