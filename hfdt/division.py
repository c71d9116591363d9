"""Divides a program's step over the ranks: for one size of batch, and where sizes differ for all that one division serves."""

import collections
import dataclasses
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.base import heap
from fdt.base.relaxation import BATCH_NORM
from fdt.division import divide, own_rows
from fdt.division.conversions import Numbers
from fdt.division.divide import DividedStep, Feed, Gradient, Input, Registered
from fdt.program.computation import is_compiled
from fdt.program.layout import PARTIAL, WHOLE, Divided, Layout, batch_layouts
from fdt.program.size import Conditions, Dim, of_inputs
from fdt.program.step_program import LoadedProgram, num_samples
from fdt.v1 import job_pb2, program_pb2
from hfdt import parts
from hfdt.exchange import HorovodExchange
from hfdt.loop import PackedLoop, Step, StepLoop, taken, undivided
from hfdt.mesh import Mesh

# How many divisions are kept: one for the first size of batch, one or two for all others, more where sizes decide layouts.
_MAX_DIVISIONS = 32
# For how many sizes of batch it is remembered which division serves them.
_MAX_SIZES = 4096

Shape = tuple[int, ...]
Shapes = tuple[Shape, ...]


@dataclasses.dataclass(frozen=True)
class Division:
    """A divided step, and the batches that it serves.

    Attributes:
        shapes: Those of the batch with which it was made.
        conditions: What other batches must meet; None if it serves batches of these shapes alone.
        loop: Runs it: a `PackedLoop` if it serves several sizes.
        numbers: What sizes are for a batch; None as for `conditions`.
        account: How it is divided, for the report.
        read: The rows of a batch that it takes of the inputs.
        registered: The step's functions.
    """

    shapes: Shapes
    conditions: Conditions | None
    loop: StepLoop | PackedLoop
    numbers: Numbers | None
    account: job_pb2.DividedStep
    read: "RowsRead"
    registered: Sequence[Registered]

    def serves(self, shapes: Shapes) -> bool:
        """Whether the division is valid for a batch of these shapes."""
        return shapes == self.shapes if self.conditions is None else self.conditions.hold(shapes)


class DividedProgram:
    """Divides a step when a batch comes that no division serves.

    The first division is for batches as the first one alone, since a step with known sizes is the fastest. Sizes that are other
    ones in a later batch stay unknown in the divisions made from then on.

    Attributes:
        in_part: Indices of the variables whose value is the sum over ranks.
        is_compiled: Whether XLA compiles its steps.
    """

    def __init__(
        self,
        loaded: LoadedProgram,
        number: int,
        num_ranks: int,
        mesh: Mesh | None,
        rounded: bool = False,
        relaxed: frozenset[str] = frozenset(),
    ) -> None:
        """
        Args:
            loaded: The program.
            number: A number unique to the program, the same on all ranks.
            num_ranks: How many ranks the job has.
            mesh: The job's mesh; None in a job of one rank.
            rounded: See `HorovodExchange`.
            relaxed: See `fdt.base.relaxation`.
        """
        self._loaded, self._num_ranks, self._relaxed = loaded, num_ranks, relaxed
        # Names of exchanges may repeat in each division: steps of different ones never overlap.
        self._exchange = HorovodExchange(f"fdt_{number}", mesh, rounded) if mesh is not None else None
        self._dim = 1 if loaded.source.one_row else 0
        self.is_compiled = is_compiled(loaded.source.computation)
        self.in_part = self._begin_in_part() if self._exchange else set()
        self._number = number
        self._undivided = StepLoop(loaded, undivided(loaded, self.is_compiled)) if self._exchange is None else None
        self._divisions: list[Division] = []
        # The division that serves a size, and its numbers.
        self._known: collections.OrderedDict[Shapes, tuple[Division, np.ndarray]] = collections.OrderedDict()
        # The inputs and dimensions that had different sizes so far.
        self._first: Shapes | None = None
        self._differing: set[tuple[int, int]] = set()

    @property
    def calls_horovod(self) -> bool:
        """Whether a step of it calls Horovod; else its ranks exchange by the mesh alone, or not at all."""
        return self._exchange is not None and self._exchange.calls_horovod

    @property
    def accounts(self) -> list[job_pb2.DividedStep]:
        """How steps are divided, for each division."""
        return [division.account for division in self._divisions]

    def _begin_in_part(self) -> set[int]:
        metrics = set(filter(self._adds_up, self._loaded.with_role(program_pb2.ROLE_METRIC)))
        if BATCH_NORM not in self._relaxed:
            return metrics
        # Each rank keeps the moving statistics of its own rows.
        names = own_rows.moved(self._loaded.step.graph, self._relaxed)
        places = {id(variable.handle): i for i, variable in enumerate(self._loaded.variables)}
        handles = zip(self._loaded.step.graph.inputs[::-1], self._loaded.step.captured_inputs[::-1], strict=False)
        return metrics | {places[id(handle)] for inner, handle in handles if inner.name in names}

    def _adds_up(self, index: int) -> bool:
        dtype = self._loaded.variables[index].dtype
        return bool(dtype.is_floating or dtype.is_integer)

    def known(self, shapes: Shapes) -> StepLoop | PackedLoop | None:
        """Returns the loop for batches of a size that it has run before; None if it has not."""
        if self._undivided is not None:
            return self._undivided
        found = self._known.get(shapes)
        return found[0].loop if found is not None else None

    def loop(self, shapes: Shapes) -> tuple[StepLoop | PackedLoop, np.ndarray, set[int]]:
        """Returns the loop for batches of a size.

        Args:
            shapes: The shapes of a batch's inputs.

        Returns:
            The loop, the numbers that it gets, and the variables that were in part and have to be made whole before it runs.
        """
        if self._undivided is not None:
            return self._undivided, np.zeros(0, np.int64), set()
        no_longer = set[int]()
        if shapes not in self._known:
            division = next((each for each in reversed(self._divisions) if each.serves(shapes)), None)
            if division is None:
                division, no_longer = self._divided(shapes)
            numbers = np.zeros(0, np.int64) if division.numbers is None else division.numbers.of(shapes)
            self._known[shapes] = division, numbers
            if len(self._known) > _MAX_SIZES:
                self._known.popitem(last=False)
        division, numbers = self._known[shapes]
        return division.loop, numbers, no_longer

    def own_rows(self, shapes: Sequence[Shape]) -> slice | None:
        """Returns which rows of a batch this rank reads; None if no division for its size has been made.

        Args:
            shapes: The shapes of the batch's inputs.
        """
        if self._undivided is not None:
            return slice(None)
        known = self._known.get(tuple(shapes))
        return None if known is None else known[0].read.of(shapes)

    def _divided(self, shapes: Shapes) -> tuple[Division, set[int]]:
        assert self._exchange is not None
        began_s = time.perf_counter()
        conditions = self._sizes_that_differ(shapes)
        loaded = self._loaded
        sizes: Sequence[tuple[Dim, ...]] = shapes
        if conditions is not None:
            sizes = of_inputs(shapes, self._differing, conditions)
        layouts = batch_layouts(sizes, self._dim, self._num_ranks)
        of_batch = [Input(layout, shape, is_readable=True) for layout, shape in zip(layouts, sizes, strict=True)]
        held = [Input(self._held(i), (), handle) for i, handle in enumerate(parts.handles(loaded))]
        divided = divide.divide(
            loaded.description,
            self._exchange,
            [Input(WHOLE, ()), *of_batch, *held],
            loaded.holes,
            self._relaxed,
            conditions,
            self._gradients(1 + len(shapes)),
        )
        # The rules need a variable whole if they cannot divide its use.
        whole = {i for i, layout in enumerate(divided.layouts[1 + len(shapes) :]) if layout == WHOLE}
        if whole & set(loaded.divided):
            return self._with_whole(shapes, whole & set(loaded.divided))
        no_longer = self.in_part & whole
        if no_longer:
            self._divisions.clear()
            self._known.clear()
            self.in_part -= no_longer
        read = RowsRead()
        feeds = [
            _feed(shape, layout, self._exchange.ranks[0], divided.numbers, read)
            for shape, layout in zip(sizes, divided.layouts[1:], strict=False)
        ]
        step = self._step(divided, feeds, conditions is not None)
        loop = StepLoop(loaded, step) if conditions is None else PackedLoop(loaded, step)
        loop.trace()
        numbers = divided.numbers if conditions is not None else None
        account = self._account(shapes, divided, time.perf_counter() - began_s)
        self._divisions.append(Division(shapes, conditions, loop, numbers, account, read, divided.registered))
        del divided, step
        heap.give_back()
        if len(self._divisions) > _MAX_DIVISIONS:
            forgotten = self._divisions.pop(0)
            for key in [key for key, (division, _) in self._known.items() if division is forgotten]:
                del self._known[key]
        return self._divisions[-1], no_longer

    def _held(self, resource: int) -> Layout:
        return self._loaded.divided.get(resource, PARTIAL if resource in self.in_part else WHOLE)

    def _gradients(self, first: int) -> dict[str, list[Gradient]]:
        """Returns the gradients that each hole receives, given the number of the step's input that is the first variable."""
        holes = self._loaded.holes.items()
        return {name: [Gradient(first + g.variable, g.sparse) for g in hole.gradients] for name, hole in holes}

    def _with_whole(self, shapes: Shapes, indices: Collection[int]) -> tuple[Division, set[int]]:
        """Divides anew with variables whole that ranks held in parts, since an operation has no rule for a part."""
        for i in sorted(indices):
            value = parts.put_together(self._loaded, i)
            self._loaded.variables[i] = tf.Variable(value, trainable=False, name=f"variable_{i}")
            del self._loaded.divided[i]
        self._divisions.clear()
        self._known.clear()
        return self._divided(shapes)

    def _sizes_that_differ(self, shapes: Shapes) -> Conditions | None:
        """Notes the sizes that are other ones than in the first batch; returns None while there are none."""
        if self._first is None:
            self._first = shapes
        for place, (before, shape) in enumerate(zip(self._first, shapes, strict=True)):
            self._differing |= {(place, dim) for dim, size in enumerate(shape) if size != before[dim]}
        return Conditions() if self._differing else None

    def _step(self, divided: DividedStep, feeds: Sequence["_FeedOf"], varies: bool) -> Step:
        handles = [resource.handle for resource in self._loaded.resources]

        def step(arrays: Sequence[tf.Tensor], rows: tf.Tensor, numbers: tf.Tensor) -> Sequence[tf.Tensor]:
            graph: Any = tf.compat.v1.get_default_graph()
            given = [Feed([tf.constant(1.0)]), *(feed(a, rows, numbers) for feed, a in zip(feeds, arrays, strict=True))]
            given += [Feed([graph.capture(handle)]) for handle in handles]
            # The loop's argument, in its body.
            return divided([*given, Feed([tf.identity(numbers)])] if varies else given)

        return step

    def _account(self, shapes: Shapes, divided: DividedStep, seconds: float) -> job_pb2.DividedStep:
        return job_pb2.DividedStep(
            program=self._number,
            rows=num_samples(self._loaded.source, shapes),
            arithmetic_divided=divided.part_divided,
            exchanges=len(divided.walk.exchanged),
            exchanged_bytes=sum(exchanged.num_bytes for exchanged in divided.walk.exchanged),
            computed_whole=collections.Counter(op.type for op in divided.walk.computed_whole),
            seconds=seconds,
            serves_other_sizes=divided.walk.conditions is not None,
            state=parts.account(self._loaded),
        )


class RowsRead:
    """The rows of a batch that a rank's step takes of the inputs: its own, until an input is taken whole."""

    def __init__(self) -> None:
        self._span: tuple[Dim, Dim] | None = None
        self._are_all = False

    def all(self) -> None:
        """Records that an input is taken whole."""
        self._are_all = True

    def span(self, start: Dim, size: Dim) -> None:
        """Records that rows from `start` on are taken of an input."""
        self._are_all = self._are_all or self._span not in (None, (start, size))
        self._span = start, size

    def of(self, shapes: Sequence[Shape]) -> slice:
        """Returns the rows of a batch of these shapes."""
        if self._are_all or self._span is None:
            return slice(None)
        start, size = (each if isinstance(each, int) else int(each.of(shapes)) for each in self._span)
        return slice(start, start + size)


# Makes a step's input of an array, the batch's rows and the numbers of sizes.
_FeedOf = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], Feed]


def _feed(shape: Sequence[Dim], layout: Layout, rank: int, numbers: Numbers, read: RowsRead) -> _FeedOf:
    static = [size if isinstance(size, int) else None for size in shape]
    if not isinstance(layout, Divided):
        read.all()
        return lambda array, rows, _: Feed([tf.ensure_shape(taken(array, rows), static)])
    ((start, size),) = layout.spans(rank)
    if not layout.dim:
        read.span(start, size)
    dim, (first, count) = layout.dim, (_number(numbers, each) for each in (start, size))
    static_own = [size if isinstance(size, int) else None, *static[1:]]

    def feed(array: tf.Tensor, rows: tf.Tensor, given: tf.Tensor) -> Feed:
        def whole() -> tf.Tensor:
            read.all()
            return tf.ensure_shape(taken(array, rows), static)

        begin, end = first(given), first(given) + count(given)
        if dim:
            return Feed([whole()[:, begin:end]], whole)
        return Feed([tf.ensure_shape(taken(array, rows[begin:end]), static_own)], whole)

    return feed


def _number(numbers: Numbers, size: Dim) -> Callable[[tf.Tensor], Any]:
    """Returns what reads a size from the numbers for a batch."""
    if isinstance(size, int):
        return lambda _: size
    place = numbers.place(size)
    return lambda given: given[place]
