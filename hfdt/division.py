"""A program's step, divided over the ranks for the sizes of batch that come."""

import collections
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from fdt.division import divide, own_rows
from fdt.division.divide import Built, Feed, Input, Plan
from fdt.division.layout import PARTIAL, WHOLE, Divided, Layout, batch_layouts
from fdt.program import LoadedProgram, num_samples
from hfdt.exchange import HorovodExchange
from hfdt.loop import Step, StepLoop, taken, undivided
from hfdt.mesh import Mesh
from protos import job_pb2, program_pb2

# Batches of so many sizes are kept divided: those of an epoch, and its last one, are two.
_MAX_SIZES = 32

Shape = tuple[int, ...]


class DividedProgram:
    """Divides a step where a batch of a size comes for the first time.

    Attributes:
        in_part: Indices of the variables of which every rank holds a part; their sum is the value.
        accounts: How steps of each size are divided.
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
        """Takes a program.

        Args:
            loaded: It.
            number: The same on all ranks, and no other program's.
            num_ranks: Of the job.
            mesh: Of the job; None of a rank that is alone.
            rounded: See `HorovodExchange`.
            relaxed: See `fdt.relaxation`.
        """
        self._loaded, self._num_ranks, self._relaxed = loaded, num_ranks, relaxed
        # What it exchanges for one size is over when it goes on with another.
        self._exchange = HorovodExchange(f"fdt_{number}", mesh, rounded) if mesh is not None else None
        self._dim = 1 if loaded.source.one_row else 0
        self._places = {id(variable.handle): i for i, variable in enumerate(loaded.variables)}
        self.in_part = self._begin_in_part() if self._exchange else set()
        self._loops: collections.OrderedDict[tuple[Shape, ...], StepLoop] = collections.OrderedDict()
        self._number = number
        self.accounts: collections.OrderedDict[tuple[Shape, ...], job_pb2.DividedStep] = collections.OrderedDict()

    def _begin_in_part(self) -> set[int]:
        metrics = set(filter(self._adds_up, self._loaded.with_role(program_pb2.ROLE_METRIC)))
        # Of a layer's moving statistics each rank keeps what its own rows give.
        moving = own_rows.moved(self._loaded.step.graph, self._relaxed)
        handles = zip(self._loaded.step.graph.inputs, self._inputs(), strict=True)
        return metrics | {self._places[id(handle)] for inner, handle in handles if inner.name in moving}

    def _inputs(self) -> list[Any]:
        """Returns what the step is given, in the order of its graph's inputs; None for the batch."""
        captured = list(self._loaded.step.captured_inputs)
        return [None] * (len(self._loaded.step.graph.inputs) - len(captured)) + captured

    def _adds_up(self, index: int) -> bool:
        dtype = self._loaded.variables[index].dtype
        return bool(dtype.is_floating or dtype.is_integer)

    def loop(self, shapes: Sequence[Shape]) -> tuple[StepLoop, set[int]]:
        """Returns the loop over batches of a size.

        Args:
            shapes: Of the inputs of a batch.

        Returns:
            The loop, and the variables that ranks have held in part, and must hold whole before it runs.
        """
        key = tuple(shapes) if self._exchange else ()
        no_longer: set[int] = set()
        if key not in self._loops:
            step, no_longer = self._divided(key) if self._exchange else (undivided(self._loaded), no_longer)
            if no_longer:
                self._loops.clear()
                self.in_part -= no_longer
            self._loops[key] = StepLoop(self._loaded, step)
        self._loops.move_to_end(key)
        if len(self._loops) > _MAX_SIZES:
            self._loops.popitem(last=False)
        return self._loops[key], no_longer

    def _divided(self, shapes: tuple[Shape, ...]) -> tuple[Step, set[int]]:
        assert self._exchange is not None
        loaded, handles = self._loaded, self._loaded.step.captured_inputs
        places = self._places
        of_batch = [
            Input(layout, tf.TensorShape(shape), is_readable=True)
            for layout, shape in zip(batch_layouts(shapes, self._dim, self._num_ranks), shapes, strict=True)
        ]
        held = [Input(PARTIAL if places.get(id(h)) in self.in_part else WHOLE, h.shape) for h in handles]
        inputs = [Input(WHOLE, tf.TensorShape([])), *of_batch, *held]
        planned = divide.plan(loaded.step.graph, self._exchange, inputs, loaded.holes, self._relaxed)
        # Of a variable that cannot be divided, the rules ask for all.
        still = zip(handles, planned.layouts[len(inputs) - len(handles) :], strict=True)
        whole = {places[id(handle)] for handle, layout in still if layout == WHOLE and id(handle) in places}
        return self._step(planned, shapes), self.in_part & whole

    def _step(self, planned: Plan, shapes: Sequence[Shape]) -> Step:
        loaded, exchange = self._loaded, self._exchange
        assert exchange is not None

        def step(arrays: Sequence[tf.Tensor], rows: tf.Tensor) -> Sequence[tf.Tensor]:
            graph: Any = tf.compat.v1.get_default_graph()
            exchange.begin(graph)
            feeds = [Feed([tf.constant(1.0)])]
            for array, shape, layout in zip(arrays, shapes, planned.layouts[1 : 1 + len(shapes)], strict=True):
                feeds.append(_feed(array, rows, shape, layout, exchange.ranks[0]))
            feeds += [Feed([graph.capture(handle)]) for handle in loaded.step.captured_inputs]
            built = divide.build(loaded.step.graph, exchange, planned, feeds, loaded.holes, self._relaxed)
            self._account(tuple(shapes), built)
            return built.outputs

        return step

    def _account(self, shapes: tuple[Shape, ...], built: Built) -> None:
        self.accounts[shapes] = job_pb2.DividedStep(
            program=self._number,
            rows=num_samples(self._loaded.source, shapes),
            arithmetic_divided=built.part_divided(self._num_ranks),
            exchanges=len(built.exchanged),
            exchanged_bytes=sum(exchanged.num_bytes for exchanged in built.exchanged),
            computed_whole=collections.Counter(op.type for op in built.computed_whole),
        )
        if len(self.accounts) > _MAX_SIZES:
            self.accounts.popitem(last=False)


def _feed(array: tf.Tensor, rows: tf.Tensor, shape: Shape, layout: Layout, rank: int) -> Feed:
    def whole() -> tf.Tensor:
        return tf.ensure_shape(taken(array, rows), shape)

    if not isinstance(layout, Divided):
        return Feed([whole()])
    ((start, size),) = layout.spans(rank)
    if layout.dim:
        return Feed([whole()[:, start : start + size]], whole)
    own = tf.ensure_shape(taken(array, rows[start : start + size]), (size, *shape[1:]))
    return Feed([own], whole)
