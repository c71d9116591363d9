"""A step divided over simulated workers, all in one graph of this process, beside the step as it is."""

import collections
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.division import divide
from fdt.program.graphs import described
from fdt.program.layout import PARTIAL, WHOLE, Divided, Layout, Partial, shares
from fdt.program.size import Conditions, Dim, Size
from tests.helpers.together import Together


@dataclasses.dataclass(frozen=True)
class Account:
    """How a step was divided.

    Attributes:
        computed_whole: Operations that got divided inputs whole, by type.
        exchanges: How many there are of each kind.
        largest: Bytes of the largest exchange.
        part: Of the arithmetic, that is divided.
    """

    computed_whole: Mapping[str, int]
    exchanges: Mapping[str, int]
    largest: int
    part: float


class DividedStep:
    """A traced step, and the same over simulated workers."""

    def __init__(
        self,
        concrete: Any,
        rows: Mapping[int, Layout],
        num_workers: int,
        in_part: Sequence[tf.Variable] = (),
        relaxed: frozenset[str] = frozenset(),
        of_state: Sequence[tf.Variable] = (),
        marks: Mapping[str, Sequence[tuple[tf.Variable, bool]]] | None = None,
        shapes: Sequence[Sequence[Dim]] | None = None,
        conditions: Conditions | None = None,
    ) -> None:
        """Divides it.

        Args:
            concrete: ConcreteFunction, traced for the whole batch.
            rows: How arguments come in, by their places; others are whole.
            num_workers: Simulated.
            in_part: Variables of the step that the workers hold in part.
            relaxed: What workers may do each for itself.
            of_state: Variables of which each worker holds a part of the rows.
            marks: For functions that receive gradients: of each gradient its variable, and whether it is rows and ids.
            shapes: The arguments' shapes, where they differ from batch to batch.
            conditions: Where these record what they are taken for.
        """
        self._graph, self._exchange, self._relaxed = concrete.graph, Together(num_workers), relaxed
        self._captured = list(concrete.captured_inputs)
        self._num_arguments = len(self._graph.inputs) - len(self._captured)
        layouts = [rows.get(i, WHOLE) for i in range(self._num_arguments)] + [WHOLE] * len(self._captured)
        self.parts: dict[int, list[tf.Variable]] = {}
        for variable in of_state:
            place = self._place(variable)
            owners = Divided(0, shares(int(variable.shape[0]), num_workers), of_state=True)
            layouts[self._num_arguments + place] = owners
            self.parts[place] = [tf.Variable(part) for part in tf.split(variable, owners.sizes, 0)]
        for variable in in_part:
            place = self._place(variable)
            layouts[self._num_arguments + place] = PARTIAL
            self.parts[place] = [
                tf.Variable(variable if r == 0 else tf.zeros_like(variable)) for r in range(num_workers)
            ]
        sized = [_sized(t.shape, layout) for layout, t in zip(layouts, self._graph.inputs, strict=True)]
        sized[: self._num_arguments] = shapes or sized[: self._num_arguments]
        given = zip(layouts, sized, self._graph.inputs, strict=True)
        inputs = [divide.Input(layout, shape, tensor) for layout, shape, tensor in given]
        gradients = {
            name: [divide.Gradient(self._num_arguments + self._place(v), is_sparse) for v, is_sparse in given]
            for name, given in (marks or {}).items()
        }
        self.divided = divide.divide(
            described(self._graph), self._exchange, inputs, gradients, relaxed, conditions, gradients
        )
        exchanged, whole = self.divided.walk.exchanged, self.divided.walk.computed_whole
        self.account = Account(
            collections.Counter(op.type for op in whole),
            dict(collections.Counter(each.kind for each in exchanged)),
            max((each.num_bytes for each in exchanged), default=0),
            self.divided.part_divided,
        )
        self.function = tf.function(self._step, autograph=False)

    def _place(self, variable: tf.Variable) -> int:
        return next(i for i, tensor in enumerate(self._captured) if tensor is variable.handle)

    def put_together(self) -> None:
        """Sets the step's variables that workers hold parts of to what the parts are."""
        for place, parts in self.parts.items():
            layout = self.divided.layouts[self._num_arguments + place]
            if isinstance(layout, Divided):
                whole = tf.concat([part.value() for part in parts], 0)
                tf.raw_ops.AssignVariableOp(resource=self._captured[place], value=whole)

    def varied(self, *arguments: np.ndarray) -> list[tf.Tensor]:
        """Runs the step on a batch of other shapes."""
        shapes = [array.shape for array in arguments]
        specs = [tf.TensorSpec([None] * array.ndim, array.dtype) for array in arguments]
        if not hasattr(self, "_varied"):
            numbers = tf.TensorSpec([None], tf.int64)
            self._varied = tf.function(self._on, autograph=False, input_signature=[numbers, *specs])
            self._varied.get_concrete_function()
        return self._varied(tf.constant(self.divided.numbers.of(shapes), tf.int64), *map(tf.constant, arguments))

    def _on(self, numbers: tf.Tensor, *arguments: tf.Tensor) -> list[tf.Tensor]:
        def of(size: Any) -> Any:
            return numbers[self.divided.numbers.place(size)] if isinstance(size, Size) else size

        layouts = [
            Divided(each.dim, tuple(map(of, each.sizes))) if isinstance(each, Divided) else each
            for each in self.divided.layouts
        ]
        return self._called(layouts, arguments, [divide.Feed([numbers])])

    def _step(self, *arguments: tf.Tensor) -> list[tf.Tensor]:
        return self._called(self.divided.layouts, arguments, [])

    def _called(
        self, layouts: Sequence[Layout], arguments: Sequence[tf.Tensor], more: list[divide.Feed]
    ) -> list[tf.Tensor]:
        inputs = [self._cut(a, layout) for a, layout in zip(arguments, layouts, strict=False)]
        graph: Any = tf.compat.v1.get_default_graph()
        num = self._exchange.num_workers
        for place, tensor in enumerate(self._captured):
            layout = self.divided.layouts[self._num_arguments + place]
            own = [tensor] * num if layout == WHOLE else [v.handle for v in self.parts[place]]
            inputs.append([graph.capture(each) for each in own])
        return self.divided([*(divide.Feed(parts) for parts in inputs), *more])

    def _cut(self, tensor: tf.Tensor, layout: Layout) -> list[tf.Tensor]:
        num = self._exchange.num_workers
        if isinstance(layout, Divided):
            return tf.split(tensor, layout.sizes, layout.dim) if tensor.dtype != tf.string else _split(tensor, layout)
        if isinstance(layout, Partial):
            # Parts that have nothing to do with each other but their sum.
            others = [tf.cast(tensor * (r + 1), tensor.dtype) for r in range(1, num)]
            return [tensor - tf.add_n(others) if others else tensor, *others]
        return [tensor] * num


def _split(tensor: tf.Tensor, layout: Divided) -> list[tf.Tensor]:
    starts = np.cumsum((0, *layout.sizes[:-1]))
    return [tf.gather(tensor, tf.range(s, s + n), axis=layout.dim) for s, n in zip(starts, layout.sizes, strict=True)]


def _sized(shape: tf.TensorShape, layout: Layout) -> tuple[int | None, ...] | None:
    """Returns a shape for the batch that comes, whatever number of rows the step was traced for."""
    if shape.rank is None:
        return None
    return tuple(
        layout.size if isinstance(layout, Divided) and dim == layout.dim else size for dim, size in enumerate(shape)
    )


def over_workers(concrete: Any, num_rows: int, num_workers: int, num_arguments: int) -> DividedStep:
    """Divides a step whose first arguments are the batch, along their first dimension."""
    rows = Divided(0, shares(num_rows, num_workers))
    return DividedStep(concrete, dict.fromkeys(range(num_arguments), rows), num_workers)


def largest_difference(one: Sequence[Any], other: Sequence[Any]) -> float:
    """Returns the largest difference of two lists of arrays, relative to the largest entry of each."""
    worst = 0.0
    for a, b in zip(map(np.asarray, one), map(np.asarray, other), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype, (a.shape, b.shape, a.dtype, b.dtype)
        if a.dtype.kind not in "fc":
            worst = max(worst, float((a != b).any()))
        elif a.size:
            assert (np.isnan(a) == np.isnan(b)).all()
            # Whatever is no number is so in both.
            a, b = np.nan_to_num(a), np.nan_to_num(b)
            worst = max(worst, float(np.max(np.abs(a - b)) / (np.max(np.abs(a)) + 1e-6)))
    return worst


def largest_differences(one: Path, other: Path) -> dict[str, float]:
    """Returns the largest difference of each file of arrays that two folders have, by the file's name."""
    names = sorted(path.name for path in one.iterdir())
    assert names == sorted(path.name for path in other.iterdir())
    found = {}
    for name in names:
        with np.load(one / name) as a, np.load(other / name) as b:
            assert a.files == b.files
            found[Path(name).stem] = largest_difference([a[key] for key in a.files], [b[key] for key in b.files])
    return found


def side_by_side(
    run: Callable[[], list[np.ndarray]], divided: Callable[[], list[np.ndarray]], variables: Sequence[tf.Variable]
) -> tuple[float, float]:
    """Runs a step both ways from the same variables.

    Returns:
        The largest relative difference of what it returns, and of the variables afterwards.
    """
    first = [v.numpy() for v in variables]
    outputs = run()
    after = [v.numpy() for v in variables]
    for variable, value in zip(variables, first, strict=True):
        variable.assign(value)
    other_outputs = divided()
    return largest_difference(outputs, other_outputs), largest_difference(after, [v.numpy() for v in variables])
