"""Implements a parameter server: parameters and optimizer state on one device, updated by one gradient at a time."""

import dataclasses
import itertools
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import tensorflow as tf

from fdt.base.native import optional
from fdt.program.engine import assign
from fdt.program.packing import as_array
from fdt.program.step_program import shape_of
from fdt.program.update.cut import Cut
from fdt.program.update.row_update import of_some_rows
from fdt.v1 import program_pb2
from nfdt.devices import cpu_beside, settle
from nfdt.gradients import Gradients
from nfdt.layout import Layout, Table, Vector
from nfdt.memory import Memory
from nfdt.rows import by_row
from nfdt.rules import Rule, Weigh
from nfdt.table_snapshots import TableSnapshots, Values, Versions
from nfdt.update import Update
from nfdt.vectors import FlatVariables, join, part

# Critical sections are found by their names.
_numbers = itertools.count()
# So many bytes of a variable of which a shard has some rows are read at a time.
_READ_BYTES = 8 << 20


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """A shard's parameters as a worker pulled them. The tensors stay on the shard and are not written to.

    Attributes:
        vectors: One for each vector of the layout, [length].
        tables: One for each table of the layout (`nfdt.table_snapshots`).
        version: How many gradients had been applied to the shard.
    """

    vectors: list[tf.Tensor]
    tables: list[tf.Tensor]
    version: int

    @property
    def tensors(self) -> list[tf.Tensor]:
        """All tensors, vectors first."""
        return [*self.vectors, *self.tables]


@dataclasses.dataclass(frozen=True)
class Pushed:
    """The result of a push.

    Attributes:
        delay: Versions between pull and push.
        correction_square: Σ c² over the shard.
        gradient_square: Σ g² over the shard; 0 if the gradient was not compensated.
    """

    delay: int
    correction_square: float = 0.0
    gradient_square: float = 0.0


class Shard:
    """A parameter server. Thread-safe; a push is atomic, and a pull sees all of a push or none of it."""

    def __init__(
        self,
        source: program_pb2.StepProgram,
        cut: Cut,
        layout: Layout,
        number: int,
        rule: Rule,
        num_workers: int,
        device: str,
        by_rows: Collection[int],
    ):
        """Makes the variables, zero until they are assigned.

        Args:
            source: The program.
            cut: The program's two parts.
            layout: The layout of all shards.
            number: This shard's index.
            rule: What to do with a gradient.
            num_workers: How many workers push.
            device: Where everything lives.
            by_rows: The tables of which workers get rows.
        """
        self._source, self._cut, self._rule, self._num_workers, self.device = source, cut, rule, num_workers, device
        self._layout = layout.shards[number]
        self._spans = self._layout.spans
        self._lock = threading.Lock()
        # A single worker's gradients have no delay, so every rule is the script's own optimizer.
        self._plain = rule.is_plain or num_workers == 1
        with tf.device(device):
            self._version = tf.Variable(0, trainable=False, dtype=tf.int64)
            self._section = tf.CriticalSection(shared_name=f"fdt_shard_{next(_numbers)}")
            self._flat = [FlatVariables(v) if v.fused else None for v in self._layout.vectors]
            own = [*self._layout.loose, *layout.shared, *(layout.still if number == 0 else ())]
            self._variables = {i: self._made(i) for i in own}
            self._memory = None if self._plain else Memory(rule, self._layout)
            weighs_rate = not self._plain and rule.weigh in (Weigh.RATE, Weigh.RATE_AND_MOMENTUM)
            compiled = num_workers > 1
            own_rows = dataclasses.replace(cut, update=of_some_rows(cut.update, self._num_rows()))
            self._apply = Update(source, own_rows, self._layout, self._handles(), weighs_rate, compiled)
            self._tables = [self._snapshots_of(table, table.variable in by_rows) for table in self._layout.tables]
        # Whether a sparse gradient's rows have to be sorted.
        self._orders_rows = self._apply.orders_rows or (self._memory is not None and rule.compensates)
        self._gather = [self._gathering(v) for v in self._layout.vectors]
        self._q = _wanted_q(rule, source)
        self._latest = self._snapshot(0)
        # One call in a graph, which ends when all its effects have.
        self._locked = tf.function(self._update, autograph=False)

    @property
    def version(self) -> int:
        """How many gradients have been applied, as far as this process knows."""
        return self._latest.version

    def pull(self) -> Snapshot:
        """Returns the parameters after the last known push, without waiting."""
        return self._latest

    def keep(self, told: np.ndarray, tensors: Sequence[tf.Tensor]) -> None:
        """Keeps the result of `push_in_graph`, if it is newer: results may arrive in another order than pushes were applied."""
        version = int(told[1])
        with self._lock:
            if version > self._latest.version:
                self._latest = Snapshot([*tensors[: self.num_vectors]], [*tensors[self.num_vectors :]], version)

    def _snapshot(self, version: int) -> Snapshot:
        with tf.device(self.device):
            return Snapshot(*self._read(), version)

    def _read(self) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        return [gather() for gather in self._gather], [table.take() for table in self._tables]

    def read(self, indices: Sequence[int], values: dict[int, np.ndarray]) -> None:
        """Adds this shard's values of the given variables; for a cut vector's, its part; none of which it has some rows."""
        wanted = set(indices) - set(self._spans)
        with self._lock:
            values.update({i: as_array(v) for i, v in self._variables.items() if i in wanted})
            for flat in self._flat:
                if flat is not None:
                    flat.read(wanted, values)

    def assign(self, values: Mapping[int, np.ndarray]) -> None:
        """Sets the given variables that this shard keeps."""
        with self._lock, tf.device(self.device):
            for table, snapshots in zip(self._layout.tables, self._tables, strict=True):
                if table.variable in values:
                    snapshots.before_assignment()
            for i, variable in self._variables.items():
                if i in values:
                    start, count = self._spans.get(i, (0, None))
                    own = values[i] if count is None else values[i][start : start + count]
                    assign(variable, [own], partial(settle, self.device))
            for flat in self._flat:
                if flat is not None:
                    flat.assign(values)
            if self._memory is not None:
                self._memory.forget_moves()
            self._latest = self._snapshot(self._latest.version)
        settle(self.device)

    def rows_of(self, index: int) -> Iterator[np.ndarray]:
        """Yields this shard's rows of a variable of which it has some, a number of rows at a time."""
        variable = self._variables[index]
        step = max(1, _READ_BYTES // max(1, variable.dtype.size * variable.shape[1:].num_elements()))
        for start in range(0, variable.shape[0], step):
            end = min(start + step, variable.shape[0])
            with self._lock, tf.device(self.device):
                # TensorFlow copies a variable whose rows are written at each read but a lookup; and after a lookup any other.
                looked_up = index in self._written_by_rows
                yield as_array(variable.sparse_read(tf.range(start, end)) if looked_up else variable[start:end])

    @property
    def _written_by_rows(self) -> set[int]:
        versions = [t for t, kept in zip(self._layout.tables, self._tables, strict=True) if not kept.is_value]
        return {i for table in versions for i in (table.variable, *table.slots)}

    def keeps(self, index: int) -> bool:
        """Whether this shard keeps a variable by itself (`variable`)."""
        return index in self._variables

    def variable(self, index: int) -> tf.Variable:
        """Returns a variable that is not in a fused vector."""
        return self._variables[index]

    def _gathering(self, vector: Vector) -> Callable[[], tf.Tensor]:
        """Returns a function that reads a vector's current value."""
        flat = self._flat[self._layout.vectors.index(vector)]
        if flat is not None:
            return flat.parameters.read_value  # type: ignore[no-any-return]
        variables = [self._variables[entry.variable] for entry in vector.entries]
        return tf.function(  # type: ignore[no-any-return]
            lambda: join(vector.entries, [v.read_value() for v in variables]), autograph=False
        )

    def _snapshots_of(self, table: Table, by_rows: bool) -> TableSnapshots:
        native = optional("nfdt") if self.device == cpu_beside(self.device) else None
        if native is not None and by_rows and self._apply.writes_rows(table):
            return Versions(self._variables[table.variable], native.ops)
        return Values(self._variables[table.variable])

    def _made(self, index: int) -> tf.Variable:
        spec = self._source.variables[index].tensor
        shape = shape_of(spec)
        if index in self._spans:
            shape = tf.TensorShape([self._spans[index][1], *shape[1:]])
        return tf.Variable(tf.zeros(shape, spec.dtype), trainable=False)

    def _num_rows(self) -> dict[str, int]:
        """Returns how many rows are here of tables that are not whole, by the update's constants that hold their shapes."""
        return {name: table.shape[0] for table in self._layout.tables for name in table.shape_constants}

    @property
    def _sparse(self) -> list[int]:
        """The tables that have gradients; a gradient's rows are in their order."""
        return [number for number, table in enumerate(self._layout.tables) if table.gradient is not None]

    def _handles(self) -> dict[int, tf.Variable]:
        """Returns the variables that an update works on, by their index in the update's graph."""
        handles = dict(self._variables)
        for flat in self._flat:
            handles |= flat.handles() if flat is not None else {}
        return handles

    # ---- in the graph -----------------------------------------------------------------------------------------------

    @property
    def num_vectors(self) -> int:
        """How many tensors of a gradient, and of a snapshot, are vectors; they come first."""
        return len(self._layout.vectors)

    def joined(self, vectors: Sequence[Sequence[tf.Tensor]]) -> list[tf.Tensor]:
        """Joins the tensors of each of a gradient's vectors, [length] each."""
        return [join(vector.entries, tensors) for vector, tensors in zip(self._layout.vectors, vectors, strict=True)]

    def parted(self, vectors: Sequence[tf.Tensor]) -> list[list[tf.Tensor]]:
        """Splits the vectors that `joined` returned; the tensors are views."""
        return [part(layout.entries, vector) for layout, vector in zip(self._layout.vectors, vectors, strict=True)]

    def snapshot_signature(self) -> list[tf.TensorSpec]:
        """Returns the specs of a snapshot's tensors."""
        specs = [tf.TensorSpec([vector.length], vector.dtype) for vector in self._layout.vectors]
        return specs + [table.spec for table in self._tables]

    def table(self, place: int) -> TableSnapshots:
        """Returns the snapshots of a table, by the place of its tensor in the shard's snapshots."""
        return self._tables[place - self.num_vectors]

    def version_in_graph(self) -> tf.Tensor:
        """Returns how many gradients have been applied, int64 scalar, without waiting for a push."""
        with tf.device(self.device):
            return self._version.read_value()

    def pull_in_graph(self) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Returns the version, int64 scalar, and the current parameters, by `snapshot_signature`; waits for a running push."""

        def read() -> list[tf.Tensor]:
            return [self._version.read_value(), *tf.nest.flatten(self._read())]

        with tf.device(self.device):
            version, *tensors = self._section.execute(read, False)
        return version, tensors

    def push_in_graph(
        self, gradients: Gradients, then: Sequence[tf.Tensor], version: tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Applies a gradient; pushes of several workers follow each other.

        Args:
            gradients: On the shard's device.
            then: The parameters that it was computed from, by `snapshot_signature`.
            version: The version of `then`, int64 scalar.

        Returns:
            float64 [4]: delay, version after this push, Σ c², Σ g²; the parameters after this push.
        """
        # Enter the section only once the gradient has been computed, has arrived and is sorted.
        with tf.device(self.device):
            orders = [by_row(indices) if self._orders_rows else None for _, indices in gradients.rows]
            with tf.control_dependencies([*gradients.tensors, *(order for order in orders if order is not None)]):
                numbers, *tensors = self._section.execute(lambda: self._within(gradients, orders, then, version), False)
                return numbers, tensors

    def _within(
        self, gradients: Gradients, orders: Sequence[tf.Tensor | None], then: Sequence[tf.Tensor], version: tf.Tensor
    ) -> list[tf.Tensor]:
        # The section ends when its results exist. A result of an inlined call does not wait for the call's effects; a control
        # edge from the call waits for the effects only. So results are passed on behind a control edge.
        results = self._locked(gradients.vectors, gradients.rows, gradients.extras, orders, then, version)
        with tf.control_dependencies(results[:1]):
            return [tf.identity(tensor) for tensor in results]

    def _update(
        self,
        vectors: list[list[tf.Tensor]],
        rows: list[tuple[tf.Tensor, tf.Tensor]],
        extras: list[tf.Tensor],
        orders: Sequence[tf.Tensor | None],
        then: Sequence[tf.Tensor],
        version: tf.Tensor,
    ) -> list[tf.Tensor]:
        given = Gradients(vectors, rows, extras)
        with tf.device(self.device):
            before = self._version.read_value()
            squares = tf.zeros([2])
            for number, (_, indices) in zip(self._sparse, rows, strict=True):
                self._tables[number].before_update(indices)
            if self._plain:
                self._apply(given, orders, tf.ones([]), [None] * self.num_vectors)
            else:
                squares = self._weighed(given, orders, then, before - version, before + 1)
            after = self._version.assign_add(1)
            latest, tables = self._read()
            numbers = [tf.cast(tensor, tf.float64) for tensor in (before - version, after, *tf.unstack(squares))]
            return [tf.stack(numbers), *latest, *tables]

    def _weighed(
        self,
        gradients: Gradients,
        orders: Sequence[tf.Tensor | None],
        then: Sequence[tf.Tensor],
        delay: tf.Tensor,
        version: tf.Tensor,
    ) -> tf.Tensor:
        """Compensates, weighs and applies; returns float32 [2], Σ c² and Σ g²."""
        assert self._memory is not None
        rho = tf.cast(self._rule.rho(tf.cast(delay, tf.float64), self._num_workers, self._q), tf.float32)
        numbers = rho, delay, tf.cast(version, tf.float32)
        vectors: list[list[tf.Tensor]] = []
        rows, late, squares = [], [], [tf.zeros([2])]
        for number, (vector, tensors) in enumerate(zip(self._layout.vectors, gradients.vectors, strict=True)):
            if self._apply.is_one_pass(number) and not self._memory.mixes:
                vectors.append(tensors)
                late.append(self._memory.late(number, then[number], delay, version))
                continue
            weighed, square = self._memory.vector(number, tensors, self._gather[number](), then[number], *numbers)
            vectors.append(part(vector.entries, weighed))
            late.append(None)
            squares.append(square)
        weighed_orders = []
        for number, pair, order in zip(self._sparse, gradients.rows, orders, strict=True):
            at, table = then[self.num_vectors + number], self._tables[number]
            weighed_pair, order, square = self._memory.rows(number, pair, order, table, at, *numbers)
            rows.append(weighed_pair)
            weighed_orders.append(order)
            squares.append(square)
        if self._rule.weigh is Weigh.RATE_AND_MOMENTUM:
            for i, variable in self._handles().items():
                if self._source.variables[i].momentum:
                    variable.assign(variable * tf.cast(rho, variable.dtype))
        squares += self._apply(Gradients(vectors, rows, gradients.extras), weighed_orders, rho, late)
        return tf.add_n(squares)


def _wanted_q(rule: Rule, source: program_pb2.StepProgram) -> float:
    """Returns the q that goes with a program's optimizer."""
    kept = [v for v in source.variables if v.role == program_pb2.ROLE_OPTIMIZER]
    momentum = max((variable.momentum for variable in kept if variable.momentum), default=None)
    return rule.wanted_q(momentum, normalises=any(variable.tensor.shape for variable in kept))
