"""Divides a program's step over the ranks, once for each size of batch."""

import collections
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from fdt.base.relaxation import BATCH_NORM
from fdt.division import divide, own_rows
from fdt.division.divide import DividedStep, Feed, Input
from fdt.program.layout import PARTIAL, WHOLE, Divided, Layout, batch_layouts
from fdt.program.step_program import LoadedProgram, num_samples
from fdt.v1 import job_pb2, program_pb2
from hfdt.exchange import HorovodExchange
from hfdt.loop import Step, StepLoop, taken, undivided
from hfdt.mesh import Mesh

# How many batch sizes keep their divided steps; an epoch with a shorter last batch has two.
_MAX_SIZES = 32

Shape = tuple[int, ...]


class DividedProgram:
    """Divides a step when the first batch of a size comes.

    Attributes:
        in_part: Indices of the variables whose value is the sum over ranks.
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
        # Names of exchanges may repeat for each size: steps of different sizes never overlap.
        self._exchange = HorovodExchange(f"fdt_{number}", mesh, rounded) if mesh is not None else None
        self._dim = 1 if loaded.source.one_row else 0
        self._places = {id(variable.handle): i for i, variable in enumerate(loaded.variables)}
        self.in_part = self._begin_in_part() if self._exchange else set()
        self._loops: collections.OrderedDict[tuple[Shape, ...], StepLoop] = collections.OrderedDict()
        self._number = number
        self.accounts: collections.OrderedDict[tuple[Shape, ...], job_pb2.DividedStep] = collections.OrderedDict()

    def _begin_in_part(self) -> set[int]:
        metrics = set(filter(self._adds_up, self._loaded.with_role(program_pb2.ROLE_METRIC)))
        if BATCH_NORM not in self._relaxed:
            return metrics
        # Each rank keeps the moving statistics of its own rows.
        names = own_rows.moved(self._loaded.step.graph, self._relaxed)
        handles = zip(self._loaded.step.graph.inputs[::-1], self._loaded.step.captured_inputs[::-1], strict=False)
        return metrics | {self._places[id(handle)] for inner, handle in handles if inner.name in names}

    def _adds_up(self, index: int) -> bool:
        dtype = self._loaded.variables[index].dtype
        return bool(dtype.is_floating or dtype.is_integer)

    def loop(self, shapes: Sequence[Shape]) -> tuple[StepLoop, set[int]]:
        """Returns the loop for batches of a size.

        Args:
            shapes: The shapes of a batch's inputs.

        Returns:
            The loop, and the variables that were in part and have to be made whole before it runs.
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
        loaded, exchange, places = self._loaded, self._exchange, self._places
        handles = [resource.handle for resource in loaded.resources]
        of_batch = [
            Input(layout, shape, is_readable=True)
            for layout, shape in zip(batch_layouts(shapes, self._dim, self._num_ranks), shapes, strict=True)
        ]
        held = [Input(PARTIAL if places.get(id(h)) in self.in_part else WHOLE, (), h) for h in handles]
        divided = divide.divide(
            loaded.description, exchange, [Input(WHOLE, ()), *of_batch, *held], loaded.holes, self._relaxed
        )
        self._account(shapes, divided)

        def step(arrays: Sequence[tf.Tensor], rows: tf.Tensor) -> Sequence[tf.Tensor]:
            graph: Any = tf.compat.v1.get_default_graph()
            feeds = [Feed([tf.constant(1.0)])]
            for array, shape, layout in zip(arrays, shapes, divided.layouts[1 : 1 + len(shapes)], strict=True):
                feeds.append(_feed(array, rows, shape, layout, exchange.ranks[0]))
            feeds += [Feed([graph.capture(handle)]) for handle in handles]
            return divided(feeds)

        # The rules need a variable whole if they cannot divide its use.
        still = zip(handles, divided.layouts[1 + len(shapes) :], strict=True)
        whole = {places[id(handle)] for handle, layout in still if layout == WHOLE and id(handle) in places}
        return step, self.in_part & whole

    def _account(self, shapes: tuple[Shape, ...], divided: DividedStep) -> None:
        self.accounts[shapes] = job_pb2.DividedStep(
            program=self._number,
            rows=num_samples(self._loaded.source, shapes),
            arithmetic_divided=divided.part_divided,
            exchanges=len(divided.walk.exchanged),
            exchanged_bytes=sum(exchanged.num_bytes for exchanged in divided.walk.exchanged),
            computed_whole=collections.Counter(op.type for op in divided.walk.computed_whole),
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
