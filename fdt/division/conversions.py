"""Values of a step in other layouts, and what workers exchange for it."""

from collections.abc import Collection, Sequence

import numpy as np
import tensorflow as tf

from fdt.division import own_rows
from fdt.division.exchange import Exchange, Exchanged
from fdt.division.graphs import graphs_around
from fdt.division.layout import WHOLE, Combine, Divided, Layout, Partial
from fdt.division.value import Value

# Bytes of a value that is worth computing in parts, instead of whole and then cut.
LARGE = 1 << 14


class MustBeWholeError(Exception):
    """An operation needs a variable or a list whole that the workers hold in part; the division begins anew without that."""

    def __init__(self, value: Value) -> None:
        super().__init__(f"{value.source!r} must be whole.")
        self.source = value.source


class Conversions:
    """Gives values other layouts, each once.

    Attributes:
        exchange: Fills the places where workers exchange values.
        exchanged: What they exchange, in the order of the step.
        made_whole: Keys of values that were exchanged.
        gradients: Keys of values that are gradients, as they come to an optimizer.
    """

    def __init__(self, exchange: Exchange, wanted: Collection[str], gradients: Collection[str]) -> None:
        """Begins without any.

        Args:
            exchange: See the class.
            wanted: Keys of partial values that some operation will need whole: those that are there when the first of them is
                needed are exchanged together.
            gradients: See the class.
        """
        self.exchange = exchange
        self.exchanged: list[Exchanged] = []
        self.made_whole: set[str] = set()
        self.gradients = set(gradients)
        # How many rows each worker has, where it takes them for the batch; see `own_rows`.
        self.own_rows: tuple[int, ...] | None = None
        self._wanted = frozenset(wanted)
        self._num_exchanges = 0
        # Partial values that will be needed whole, made in the current graph and not exchanged yet.
        self._ready: list[Value] = []
        # What was built in the place of the script's operation that is looked at.
        self._made: list[tf.Operation] = []

    def tensors(self, value: Value) -> tuple[tf.Tensor, ...]:
        """Returns a value's tensors; that of a constant is made in each graph where it is used."""
        if value.constant is None or value.tensors:
            return value.tensors
        graph = tf.compat.v1.get_default_graph()
        if value.made is None or value.made.graph is not graph:
            with tf.control_dependencies(None):
                value.made = tf.constant(value.constant)
        return (value.made,) * len(self.exchange.ranks)

    def announce(self, value: Value) -> None:
        """Takes note of a value that is there now, and may be exchanged together with others."""
        is_wanted = value.key in self._wanted and isinstance(value.layout, Partial) and not self.has(value, WHOLE)
        if is_wanted and all(other.others is not value.others for other in self._ready):
            self._ready.append(value)

    def settle(self) -> None:
        """Exchanges what is ready: a branch or loop is about to be built, and each would do it for itself."""
        while self._ready:
            self.converted(self._ready[0], WHOLE, "")

    def converted(self, value: Value, layout: Layout, reader: str) -> Value:
        """Returns a value in another layout; workers exchange what it takes."""
        if value.layout == layout:
            return value
        if value.remake is not None:
            return value.remake(layout)
        if self.own_rows is not None and own_rows.stands_in(value, layout):
            converted = own_rows.converted(value, self.tensors(value), self.own_rows, self.exchange.ranks)
            return self.converted(converted, layout, reader)
        for known in value.others.get(layout, ()):
            if _visible(known):
                return known
        made = self._convert(value, layout, reader)
        if not self.has(value, layout):
            value.others.setdefault(layout, []).append(made)
        return made

    def has(self, value: Value, layout: Layout) -> bool:
        """Whether a value is there in a layout already."""
        return value.layout == layout or any(map(_visible, value.others.get(layout, ())))

    def _convert(self, value: Value, layout: Layout, reader: str) -> Value:
        if value.dtype in (tf.resource, tf.variant):
            raise MustBeWholeError(value)
        if layout == WHOLE:
            return self._made_whole(value, reader)
        if isinstance(layout, Divided) and value.cut is not None and value.num_bytes > LARGE:
            part = value.cut(layout)
            if part is not None:
                return part
        whole = self.converted(value, WHOLE, reader)
        tensors = self.tensors(whole)
        ranks = self.exchange.ranks
        if isinstance(layout, Divided):
            cut = [own_part(t, layout, r) for t, r in zip(tensors, ranks, strict=True)]
        else:
            assert isinstance(layout, Partial)
            cut = [t if r == 0 else neutral(t, layout.combine) for t, r in zip(tensors, ranks, strict=True)]
        return Value(layout, value.source, tuple(cut))

    def _made_whole(self, value: Value, reader: str) -> Value:
        if value.whole is not None:
            return Value(WHOLE, value.source, (value.whole(),) * len(self.exchange.ranks))
        if value.again is not None and value.key not in self.gradients:
            return value.again()
        self.made_whole.add(value.key)
        if isinstance(value.layout, Partial):
            mine = next((ready for ready in self._ready if ready.others is value.others), None)
            if mine is None:
                return self._reduced([value], reader)[0]
            together = [other for other in self._ready if self._goes_with(mine, other)]
            self._ready = [other for other in self._ready if other not in together]
            return self._reduced(together, reader)[together.index(mine)]
        assert isinstance(value.layout, Divided)
        with tf.control_dependencies(None):
            front = [_to_front(t, value.layout.dim) for t in value.tensors]
            gathered = self.exchange.gather(front, value.layout.sizes, self._next_name(), value.key in self.gradients)
            if value.layout.blocks:
                gathered = tf.gather(gathered, _order(value.layout))
            tensor = _from_front(gathered, value.layout.dim)
        tensor.set_shape(value.shape)
        return self._exchanged(value, tensor, "gather", reader)

    def _goes_with(self, value: Value, other: Value) -> bool:
        alike = value.layout == other.layout and value.dtype == other.dtype
        return alike and (value.key in self.gradients) == (other.key in self.gradients)

    def _reduced(self, values: Sequence[Value], reader: str) -> list[Value]:
        layout = values[0].layout
        assert isinstance(layout, Partial)
        with tf.control_dependencies(None):
            tensors = self.exchange.reduce(
                [v.tensors for v in values], layout.combine, self._next_name(), values[0].key in self.gradients
            )
        whole = []
        for value, tensor in zip(values, tensors, strict=True):
            tensor.set_shape(value.tensors[0].shape)
            whole.append(self._exchanged(value, tensor, layout.combine.value, reader))
            value.others.setdefault(WHOLE, []).append(whole[-1])
        return whole

    def _next_name(self) -> str:
        self._num_exchanges += 1
        return f"exchange_{self._num_exchanges}"

    def _exchanged(self, value: Value, tensor: tf.Tensor, kind: str, reader: str) -> Value:
        collective, is_gradient = f"exchange_{self._num_exchanges}", value.key in self.gradients
        self.exchanged.append(Exchanged(kind, value.num_bytes, value.source, reader, collective, is_gradient))
        self._made.append(tensor.op)
        return Value(WHOLE, value.source, (tensor,) * len(self.exchange.ranks))


def neutral(tensor: tf.Tensor, combine: Combine) -> tf.Tensor:
    """Returns what changes nothing when it is put together with others."""
    if combine is Combine.SUM:
        return tf.zeros_like(tensor)
    if tensor.dtype == tf.bool:
        return (tf.zeros_like if combine is Combine.MAX else tf.ones_like)(tensor)
    limit = tensor.dtype.min if combine is Combine.MAX else tensor.dtype.max
    if tensor.dtype.is_floating:
        limit = -np.inf if combine is Combine.MAX else np.inf
    return tf.fill(tf.shape(tensor), tf.cast(limit, tensor.dtype))


def own_part(tensor: tf.Tensor, layout: Divided, rank: int) -> tf.Tensor:
    """Returns what a worker holds of a whole tensor."""
    return taken(tensor, layout.dim, layout.spans(rank))


def taken(tensor: tf.Tensor, dim: int, spans: Sequence[tuple[int, int]], stride: int = 1) -> tf.Tensor:
    """Returns entries of a tensor along a dimension, one span's behind the other's.

    Args:
        tensor: It.
        dim: The dimension.
        spans: The first entry of each, and how many.
        stride: From one of them to the next.
    """
    before = (slice(None),) * dim
    filled = [(first, count) for first, count in spans if count] or [(0, 0)]
    parts = [tensor[(*before, slice(first, first + count * stride, stride))] for first, count in filled]
    return parts[0] if len(parts) == 1 else tf.concat(parts, dim)


def _order(layout: Divided) -> np.ndarray:
    """Returns where each entry of the whole tensor is, if all workers' parts stand one behind the other."""
    spans = [span for rank in range(len(layout.sizes)) for span in layout.spans(rank)]
    return np.argsort(np.concatenate([np.arange(start, start + size) for start, size in spans]))


def _to_front(tensor: tf.Tensor, dim: int) -> tf.Tensor:
    if dim == 0:
        return tensor
    order = [dim, *(d for d in range(tensor.shape.rank) if d != dim)]
    return tf.transpose(tensor, order)


def _from_front(tensor: tf.Tensor, dim: int) -> tf.Tensor:
    if dim == 0:
        return tensor
    order = [*range(1, dim + 1), 0, *range(dim + 1, tensor.shape.rank)]
    return tf.transpose(tensor, order)


def _visible(value: Value) -> bool:
    """Whether a value can be used in the current graph: its tensors are of this graph, or of those around it."""
    around = list(graphs_around(tf.compat.v1.get_default_graph()))
    return all(any(tensor.graph is graph for graph in around) for tensor in value.tensors)
