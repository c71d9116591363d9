"""Converts values of a step to other layouts, by exchanges between workers where necessary."""

import contextlib
import functools
import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.division import own_rows
from fdt.division.buckets import buckets
from fdt.division.exchange import Collective, Exchange, Exchanged
from fdt.program.body import Body, Sketch, Spec, Wire
from fdt.program.layout import PARTIAL, WHOLE, Combine, Divided, Layout, Owned, Partial
from fdt.program.size import Dim, Shapes, Size, is_number
from fdt.program.value import Value

# Bytes above which computing a value in parts is worth more than cutting the whole value.
LARGE = 1 << 14


class MustBeWholeError(Exception):
    """An operation needs a variable or list whole that workers hold in part; the division starts again with it whole."""

    def __init__(self, value: Value) -> None:
        super().__init__(f"{value.source!r} must be whole.")
        self.source = value.source


class Numbers:
    """The numbers that sizes have for a batch: an argument of the divided step, and places in it.

    Attributes:
        argument: Adds the argument to the step's function; int64 [places].
    """

    def __init__(self, argument: Callable[[], Wire]) -> None:
        """See the class."""
        self.argument = functools.cache(argument)
        self._places: dict[Dim, int] = {}

    def place(self, size: Dim) -> int:
        """Returns the place of a size."""
        return self._places.setdefault(size, len(self._places))

    def of(self, shapes: Shapes) -> np.ndarray:
        """Returns the argument for a batch."""
        return np.array([size.of(shapes) if isinstance(size, Size) else size for size in self._places], np.int64)


class Conversions:
    """Converts values to other layouts, each value once per layout.

    Attributes:
        exchange: Adds the operations by which workers exchange values.
        exchanged: The step's exchanges, in its order.
        made_whole: Keys of values that were exchanged.
        gradients: Keys of values that are gradients given to an optimizer.
        body: The function that is being written.
        numbers: What sizes are that differ from batch to batch; None where all are the same.
    """

    def __init__(self, exchange: Exchange, body: Body, wanted: Collection[str], gradients: Collection[str]) -> None:
        """Makes an instance without converted values.

        Args:
            exchange: See the class.
            body: The step's function.
            wanted: Keys of partial values that some operation will need whole: when the first of them is needed, all that
                exist by then are exchanged together.
            gradients: See the class.
        """
        self.exchange, self.body = exchange, body
        self.exchanged: list[Exchanged] = []
        self.made_whole: set[str] = set()
        self.gradients = set(gradients)
        # Each worker's number of rows, inside a part where it uses its own rows as the batch; see `own_rows`.
        self.own_rows: tuple[int, ...] | None = None
        self._wanted = frozenset(wanted)
        self._num_exchanges = 0
        # Partial values that will be needed whole, made in this function and not exchanged yet.
        self._ready: list[Value] = []
        # Names of the nodes written so far for the script's operation that is being divided.
        self._made: list[str] = []
        self._sketches: dict[Any, Sketch] = {}
        self.numbers: Numbers | None = None
        self._looked_up: dict[Any, Wire] = {}

    def tensors(self, value: Value) -> tuple[Wire, ...]:
        """Returns a value's tensors; a constant's is made in each function that uses it."""
        elements = value.elements_known
        if elements is None or value.tensors:
            return value.tensors
        if value.made is None or value.made.body is not self.body:
            value.made = self.constant(elements, value.dtype, is_shared=True)
        return (value.made,) * len(self.exchange.ranks)

    def constant(self, elements: np.ndarray, dtype: tf.DType, is_shared: bool = False) -> Wire:
        """Writes a constant, or a tensor of the numbers that sizes have for a batch; see `Body.constant`."""
        if elements.dtype != object:
            return self.body.constant(elements, is_shared=is_shared)
        if self.body.is_dry:
            return self.body.nothing
        if not any(isinstance(element, Size) for element in elements.flat):
            return self.body.constant(elements.astype(dtype.as_numpy_dtype), is_shared=is_shared)
        assert self.numbers is not None
        places = np.array([self.numbers.place(size) for size in elements.flat], np.int32).reshape(elements.shape)
        key = self.body, places.tobytes(), places.shape, dtype
        if key not in self._looked_up:

            def look_up(numbers: tf.Tensor) -> tf.Tensor:
                with tf.device("/cpu:0"):
                    return tf.cast(tf.gather(numbers, places), dtype)

            sketch = Sketch(look_up, [Spec(tf.int64, (None,))])
            with self.waiting_for([]):
                (self._looked_up[key],) = self.body.draw(sketch, [self.numbers.argument()], "sizes")
        return self._looked_up[key]

    def zeros(self, shape: Sequence[Dim], dtype: tf.DType) -> Wire:
        """Writes a tensor of zeros."""
        if all(map(is_number, shape)):
            return self.body.constant(np.zeros(list(map(int, shape)), dtype.as_numpy_dtype))
        if self.body.is_dry:
            return self.body.nothing
        sketch = Sketch(lambda sizes: tf.zeros(sizes, dtype), [Spec(tf.int32, (len(shape),))])
        return self.body.draw(sketch, [self.constant(np.array(shape, object), tf.int32)], "zeros")[0]

    def sizes(self, make: Callable[[int], Sequence[Dim]]) -> Value:
        """Returns numbers, int64, for each worker its own.

        Args:
            make: Returns them for a rank.
        """
        each = [np.array([*make(rank)], object) for rank in self.exchange.ranks]
        tensors = tuple(self.constant(sizes, tf.int64) for sizes in each)
        return Value(WHOLE, "sizes", each[0].shape, tf.dtypes.int64, tensors)

    def computed(
        self, make: Callable[..., Any], values: Sequence[Value], key: Any = None, count: int = 1, alike: bool = False
    ) -> list[tuple[Wire, ...]]:
        """Adds, on each worker, a computation that is not an operation of the script.

        Args:
            make: Called with a worker's rank and its tensors of the values; returns one or several tensors.
            values: The inputs, of which each worker has its own tensors.
            key: Equal keys let `make`'s operations be reused; None calls `make` each time.
            count: How many tensors `make` returns.
            alike: Whether all workers compute the same.

        Returns:
            For each tensor that `make` returns, one for each worker.
        """
        ranks = self.exchange.ranks
        if self.body.is_dry:
            return [(self.body.nothing,) * len(ranks)] * count
        given = [self.tensors(value) for value in values]
        runs = []
        for place, rank in enumerate(ranks[:1] if alike else ranks):
            specs = tuple(value.spec(rank) for value in values)
            runs.append(self._drawn(partial(make, rank), specs, [each[place] for each in given], key and (key, rank)))
        if alike:
            runs *= len(ranks)
        return [tuple(run[k] for run in runs) for k in range(count)]

    def _drawn(self, make: Callable[..., Any], specs: Sequence[Spec], inputs: Sequence[Wire], key: Any) -> list[Wire]:
        known = key and (key, specs)
        if known is None or known not in self._sketches:
            sketch = Sketch(make, specs)
            if known is not None:
                self._sketches[known] = sketch
        else:
            sketch = self._sketches[known]
        outputs = self.body.draw(sketch, inputs, "own")
        self._made += [wire.node for wire in outputs if wire not in inputs]
        return outputs

    def announce(self, value: Value) -> None:
        """Records a value that is computed now, and may be exchanged together with others."""
        is_wanted = value.key in self._wanted and isinstance(value.layout, Partial) and not self.has(value, WHOLE)
        if is_wanted and all(other.others is not value.others for other in self._ready):
            self._ready.append(value)

    def settle(self) -> None:
        """Exchanges all recorded values before a branch or loop, each of which would exchange them again."""
        while self._ready:
            self.converted(self._ready[0], WHOLE, "")

    def converted(self, value: Value, layout: Layout, reader: str) -> Value:
        """Returns a value in another layout, adding an exchange if necessary."""
        if value.layout == layout:
            return value
        if value.remake is not None:
            return value.remake(layout)
        if self.own_rows is not None and own_rows.stands_in(value, layout):
            return self.converted(self.of_own_rows(value, self.own_rows), layout, reader)
        for known in value.others.get(layout, ()):
            if self.is_visible(known):
                return known
        made = self._convert(value, layout, reader)
        if not self.has(value, layout):
            value.others.setdefault(layout, []).append(made)
        return made

    def has(self, value: Value, layout: Layout) -> bool:
        """Whether a value exists in a layout already."""
        return value.layout == layout or any(map(self.is_visible, value.others.get(layout, ())))

    def _convert(self, value: Value, layout: Layout, reader: str) -> Value:
        if value.dtype in (tf.resource, tf.variant) or value.places is not None:
            raise MustBeWholeError(value)
        if layout == WHOLE:
            return self._made_whole(value, reader)
        if isinstance(layout, Owned) and has_no_rows(value):
            return value.held(layout, self.tensors(value))
        if isinstance(layout, Divided) and layout.of_state and value.layout == PARTIAL and not self.has(value, WHOLE):
            return self.scattered([value], [layout], reader)[0]
        if isinstance(layout, Divided) and value.cut is not None and value.num_bytes > LARGE:
            part = value.cut(layout)
            if part is not None:
                return part
        whole = self.converted(value, WHOLE, reader)
        with self.waiting_for([]):
            if isinstance(layout, Divided) and not all(map(is_number, layout.sizes)):
                return whole.held(layout, self._cut(whole, layout))
            return whole.held(layout, self.computed(partial(_part, layout), [whole], ("part", layout))[0])

    def _cut(self, whole: Value, layout: Divided) -> tuple[Wire, ...]:
        def part(_: int, tensor: tf.Tensor, spans: tf.Tensor) -> tf.Tensor:
            return taken(tensor, layout.dim, [tf.unstack(span) for span in tf.unstack(tf.reshape(spans, (-1, 2)))])

        spans = self.sizes(lambda rank: list(itertools.chain(*layout.spans(rank))))
        return self.computed(part, [whole, spans], ("cut", layout.dim, len(layout.each)))[0]

    def _made_whole(self, value: Value, reader: str) -> Value:
        if value.whole is not None:
            return value.held(WHOLE, (value.whole(),) * len(self.exchange.ranks))
        if value.again is not None and value.key not in self.gradients:
            return value.again()
        self.made_whole.add(value.key)
        if isinstance(value.layout, Partial):
            mine = next((ready for ready in self._ready if ready.others is value.others), None)
            if mine is None:
                return self._reduced([value], reader)[0]
            together = [other for other in self._ready if self._goes_with(mine, other)]
            self._ready = [other for other in self._ready if other not in together]
            bucket_bytes = self.exchange.bucket_bytes if mine.key in self.gradients else None
            reduced: list[Value] = []
            for bucket in buckets([each.num_bytes for each in together], bucket_bytes):
                reduced += self._reduced(together[bucket], reader, behind=bucket.stop < len(together))
            return reduced[together.index(mine)]
        layout = value.layout
        if isinstance(layout, Owned):
            layout = Divided(0, (None,) * self.exchange.num_workers)  # type: ignore[arg-type]
        assert isinstance(layout, Divided)

        def gathered(collective: Collective, *tensors: tf.Tensor) -> tf.Tensor:
            front = [_to_front(t, layout.dim) for t in tensors]
            rows = self.exchange.gather(front, layout.sizes, collective)
            return _from_front(tf.gather(rows, _order(layout)) if layout.blocks else rows, layout.dim)

        (tensor,) = self._together(gathered, [value], value.key in self.gradients)
        return self._exchanged(value, tensor, "gather", reader)

    def scattered(
        self, values: Sequence[Value], layouts: Sequence[Divided], reader: str, behind: bool = False
    ) -> list[Value]:
        """Returns partial values of one type in parts of variables; they are exchanged together. `behind`: see `Collective`."""
        count, sizes = len(self.exchange.ranks), [tuple(map(int, layout.sizes)) for layout in layouts]

        def scatter(collective: Collective, *tensors: tf.Tensor) -> list[tf.Tensor]:
            each = [tensors[i : i + count] for i in range(0, len(tensors), count)]
            return list(itertools.chain(*self.exchange.scatter(each, sizes, collective)))

        parts = iter(self._together(scatter, values, values[0].key in self.gradients, len(values) * count, behind))
        made = []
        for value, layout in zip(values, layouts, strict=True):
            self._account(value, "scatter", reader)
            made.append(value.held(layout, tuple(itertools.islice(parts, count))))
            value.others.setdefault(layout, []).append(made[-1])
        return made

    def swapped(
        self, values: Sequence[tuple[Value, int]], counts: Value, reader: str, gradients: bool = False
    ) -> tuple[list[Value], Value]:
        """Sends entries from each worker to each, of some values as many; see `Exchange.swap`.

        Args:
            values: Of which each worker has its own tensor, and how many bytes of each all workers have at most.
            counts: How many go to each worker.
            reader: Name of the operation that needs them.
            gradients: Whether they belong to a gradient given to an optimizer.

        Returns:
            What each worker gets, and how much of it from each worker.
        """
        count = len(self.exchange.ranks)
        num_bytes = sum(size for _, size in values) if all(size for _, size in values) else 0

        def swap(collective: Collective, *tensors: tf.Tensor) -> list[tf.Tensor]:
            *given, own = (tensors[start : start + count] for start in range(0, len(tensors), count))
            received, numbers = self.exchange.swap(given, own, num_bytes, collective)
            return [*itertools.chain(*received), *numbers]

        wires = self._together(swap, [*(value for value, _ in values), counts], gradients, (len(values) + 1) * count)
        for value, size in values:
            self._account(value, "rows", reader, size)
        *received, numbers = (wires[start : start + count] for start in range(0, len(wires), count))
        return [loose(value, each) for (value, _), each in zip(values, received, strict=True)], loose(counts, numbers)

    def _together(
        self,
        exchange: Callable[..., Any],
        values: Sequence[Value],
        gradients: bool,
        count: int | None = None,
        behind: bool = False,
    ) -> list[Wire]:
        """Writes an exchange, which waits for the exchanged values only; returns `count` tensors, or one for each value."""
        self._num_exchanges += 1
        if self.body.is_dry:
            return [self.body.nothing] * (len(values) if count is None else count)
        specs = [value.spec(rank) for value in values for rank in self.exchange.ranks]
        inputs = [tensor for value in values for tensor in self.tensors(value)]
        with self.waiting_for([]):
            collective = Collective(f"exchange_{self._num_exchanges}", gradients, self.body.outer is not None, behind)
            return self._drawn(partial(exchange, collective), specs, inputs, None)

    @contextlib.contextmanager
    def waiting_for(self, nodes: Collection[str]) -> Iterator[None]:
        """Makes nodes that are written in this context wait for these nodes of the function only."""
        before, self.body.controls = self.body.controls, list(nodes)
        yield
        self.body.controls = before

    def after(self, nodes: Collection[str], tensors: Sequence[Wire]) -> tuple[Wire, ...]:
        """Returns tensors that are there once some nodes of this function have run."""
        return tuple(self.body.after(nodes, tensor) for tensor in tensors)

    def is_visible(self, value: Value) -> bool:
        """Whether a value can be used here: its tensors belong to this function or an outer one."""
        around = list(self.body.around())
        return all(tensor.body in around for tensor in value.tensors)

    def _goes_with(self, value: Value, other: Value) -> bool:
        alike = value.layout == other.layout and value.dtype == other.dtype
        return alike and (value.key in self.gradients) == (other.key in self.gradients)

    def _reduced(self, values: Sequence[Value], reader: str, behind: bool = False) -> list[Value]:
        layout, count = values[0].layout, len(self.exchange.ranks)
        assert isinstance(layout, Partial)
        combine = layout.combine

        def reduced(collective: Collective, *tensors: tf.Tensor) -> list[tf.Tensor]:
            each = [tensors[i : i + count] for i in range(0, len(tensors), count)]
            return self.exchange.reduce(each, combine, collective)

        whole, gradients = [], values[0].key in self.gradients
        for value, tensor in zip(values, self._together(reduced, values, gradients, behind=behind), strict=True):
            whole.append(self._exchanged(value, tensor, combine.value, reader))
            value.others.setdefault(WHOLE, []).append(whole[-1])
        return whole

    def _exchanged(self, value: Value, tensor: Wire, kind: str, reader: str) -> Value:
        self._account(value, kind, reader)
        return value.held(WHOLE, (tensor,) * len(self.exchange.ranks))

    def _account(self, value: Value, kind: str, reader: str, num_bytes: int | None = None) -> None:
        collective, is_gradient = f"exchange_{self._num_exchanges}", value.key in self.gradients
        size = value.num_bytes if num_bytes is None else num_bytes
        self.exchanged.append(Exchanged(kind, size, value.source, reader, collective, is_gradient))

    def of_own_rows(self, value: Value, rows: tuple[int, ...]) -> Value:
        """Scales each worker's part of a sum up to a whole value, or its whole value down to its part of the weighted mean."""
        is_partial = value.layout == PARTIAL
        (parts,) = self.computed(partial(own_rows.scaled, rows, is_partial), [value], ("own rows", rows, is_partial))
        made = value.held(WHOLE if is_partial else PARTIAL, parts)
        made.own_rows = rows if is_partial else None
        return made


def loose(like: Value, tensors: Sequence[Wire]) -> Value:
    """Returns a value of which each worker has a tensor of its own, with its own number of rows."""
    return Value(WHOLE, like.source, (None, *(like.shape or ())[1:]), like.dtype, tuple(tensors))


def has_no_rows(value: Value) -> bool:
    """Whether it is known that a value has no entries along dimension 0."""
    return bool(value.shape) and value.shape is not None and value.shape[0] == 0


def _part(layout: Layout, rank: int, tensor: tf.Tensor) -> tf.Tensor:
    """Returns a worker's part of a whole tensor."""
    if isinstance(layout, Divided):
        return taken(tensor, layout.dim, layout.spans(rank))
    assert isinstance(layout, Partial)
    return tensor if rank == 0 else neutral(tensor, layout.combine)


def neutral(tensor: tf.Tensor, combine: Combine) -> tf.Tensor:
    """Returns the neutral element of a combination, of a tensor's shape."""
    if combine is Combine.SUM:
        return tf.zeros_like(tensor)
    if tensor.dtype == tf.bool:
        return (tf.zeros_like if combine is Combine.MAX else tf.ones_like)(tensor)
    limit = tensor.dtype.min if combine is Combine.MAX else tensor.dtype.max
    if tensor.dtype.is_floating:
        limit = -np.inf if combine is Combine.MAX else np.inf
    return tf.fill(tf.shape(tensor), tf.cast(limit, tensor.dtype))


def taken(tensor: tf.Tensor, dim: int, spans: Sequence[tuple[Any, Any]], stride: int = 1) -> tf.Tensor:
    """Returns entries of a tensor along a dimension: those of all spans, concatenated.

    Args:
        tensor: The tensor.
        dim: The dimension.
        spans: For each span its first entry and its number of entries.
        stride: The distance from one entry of a span to the next.
    """
    before = (slice(None),) * dim
    filled = [(first, count) for first, count in spans if isinstance(count, tf.Tensor) or count] or [(0, 0)]
    parts = [tensor[(*before, slice(first, first + count * stride, stride))] for first, count in filled]
    return parts[0] if len(parts) == 1 else tf.concat(parts, dim)


def _order(layout: Divided) -> np.ndarray:
    """Returns the position of each entry of the whole tensor in the concatenation of all workers' parts."""
    spans = [tuple(map(int, span)) for rank in range(len(layout.sizes)) for span in layout.spans(rank)]
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
