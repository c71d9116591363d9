"""One parameter server: parameters and optimizer state on one device, updated by one gradient at a time."""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

import numpy as np
import tensorflow as tf

from fdt.program import shape_of
from nfdt.cut import Cut
from nfdt.layout import Layout, Vector
from nfdt.memory import Memory
from nfdt.reliability import Reliability
from nfdt.rules import Rule, Weigh
from nfdt.transfer import Transfer
from nfdt.update import Update
from nfdt.vectors import FlatVariables, join
from protos import program_pb2

_NOBODY_WAITS = contextlib.nullcontext()


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """The parameters of a shard as a worker was given them. They stay on the shard, and nobody writes to them.

    Attributes:
        vectors: As the layout has them, [length].
        tables: As the layout has them.
        version: How many gradients had been applied.
    """

    vectors: list[tf.Tensor]
    tables: list[tf.Tensor]
    version: int


@dataclasses.dataclass(frozen=True)
class Gradients:
    """What a worker computed for one shard.

    Attributes:
        vectors: As the layout has them, [length].
        rows: For each table that has a gradient (values [rows, ...], indices [rows]).
        extras: As the cut has them.
    """

    vectors: list[tf.Tensor]
    rows: list[tuple[tf.Tensor, tf.Tensor]]
    extras: list[tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Pushed:
    """What became of a push.

    Attributes:
        delay: Versions between pull and push.
        correction_square: Σ c² over the shard.
        gradient_square: Σ g² over the shard; 0 where nothing was compensated.
    """

    delay: int
    correction_square: float = 0.0
    gradient_square: float = 0.0


class Shard:
    """A parameter server. Any thread may call; a push is atomic, and a pull sees all of it or nothing."""

    def __init__(
        self,
        source: program_pb2.StepProgram,
        cut: Cut,
        layout: Layout,
        number: int,
        rule: Rule,
        num_workers: int,
        device: str,
        rounded: bool = False,
    ):
        """Makes the variables, zero until they are assigned.

        Args:
            source: The program.
            cut: Its two parts.
            layout: Of all shards.
            number: Which of them this one is.
            rule: What to do with a gradient.
            num_workers: How many workers push.
            device: Where everything lives.
            rounded: Whether gradients come from other hosts as 16-bit floats.
        """
        self._source, self._cut, self._rule, self._num_workers, self._device = source, cut, rule, num_workers, device
        self._layout = layout.shards[number]
        self._lock = threading.Lock()
        self._version = 0
        # One worker never meets a delay: whatever the rule, it is the script's own optimizer.
        self._plain = rule.is_plain or num_workers == 1
        with tf.device(device):
            self._flat = [FlatVariables(v) if v.fused else None for v in self._layout.vectors]
            own = [*self._layout.loose, *layout.shared, *(layout.still if number == 0 else ())]
            self._variables = {i: _variable(source, i) for i in own}
            self._memory = None if self._plain else Memory(rule, self._layout)
            weighs_rate = not self._plain and rule.weigh in (Weigh.RATE, Weigh.RATE_AND_MOMENTUM)
            self._reliability = Reliability(device) if weighs_rate else None
            compiled = num_workers > 1
            self._apply = Update(source, cut, self._layout, self._handles(), self._reliability, compiled)
        # How many rows of a table come differs from push to push; after two it is left open.
        run = self._push_plain if self._plain else self._push_weighed
        self._push = tf.function(run, autograph=False, reduce_retracing=True)
        self._gather = [self._gathering(v) for v in self._layout.vectors]
        # μ of the optimizer; None if it is no momentum method.
        self._momentum = max((m for m in (source.variables[i].momentum for i in self._handles()) if m), default=None)
        self._latest = self._snapshot()
        self._receive = Transfer(device, rounded)

    @property
    def version(self) -> int:
        """How many gradients have been applied."""
        return self._version

    def pull(self) -> Snapshot:
        """Returns the parameters as the last push left them; waits for nobody."""
        return self._latest

    def _snapshot(self) -> Snapshot:
        with tf.device(self._device):
            vectors = [gather() for gather in self._gather]
            tables = [self._variables[table.variable].read_value() for table in self._layout.tables]
            return Snapshot(vectors, tables, self._version)

    def push(
        self, gradients: Gradients, snapshot: Snapshot, turn: AbstractContextManager[object] = _NOBODY_WAITS
    ) -> Pushed:
        """Applies a gradient that was computed from a snapshot.

        Args:
            gradients: Where the worker computed them.
            snapshot: What it computed them from.
            turn: In which they may come here.
        """
        with turn:
            values = self._receive(
                [*gradients.vectors, *(t for pair in gradients.rows for t in pair), *gradients.extras]
            )
        with self._lock, tf.device(self._device):
            delay = self._version - snapshot.version
            if self._plain:
                squares = self._push(values).numpy()
            else:
                rho = self._rule.rho(delay, self._num_workers, self._momentum)
                if self._reliability is not None:
                    self._reliability.assign(rho)
                numbers = (tf.constant(rho, tf.float32), tf.constant(self._version + 1, tf.float32))
                # Nothing has moved since the pull: there is nothing to compensate, which is known before anything is computed.
                squares = self._push(values, snapshot.vectors, snapshot.tables, *numbers, prompt=delay == 0).numpy()
            self._version += 1
            self._latest = self._snapshot()
        return Pushed(delay, float(squares[0]), float(squares[1]))

    def read(self, indices: Sequence[int]) -> dict[int, np.ndarray]:
        """Returns the values of the variables among these that are kept here."""
        wanted = set(indices)
        with self._lock:
            values = {i: v.numpy() for i, v in self._variables.items() if i in wanted}
            for flat in self._flat:
                values.update(flat.read(wanted) if flat is not None else {})
        return values

    def assign(self, values: Mapping[int, np.ndarray]) -> None:
        """Sets the variables among these that are kept here."""
        with self._lock, tf.device(self._device):
            for i, variable in self._variables.items():
                if i in values:
                    variable.assign(values[i])
            for flat in self._flat:
                if flat is not None:
                    flat.assign(values)
            self._latest = self._snapshot()

    def keeps(self, index: int) -> bool:
        """Whether `variable` knows this one."""
        return index in self._variables

    def variable(self, index: int) -> tf.Variable:
        """Returns a variable that is kept by itself."""
        return self._variables[index]

    def _gathering(self, vector: Vector) -> Callable[[], tf.Tensor]:
        """Returns a function that returns a vector as it is now."""
        flat = self._flat[self._layout.vectors.index(vector)]
        if flat is not None:
            return flat.parameters.read_value  # type: ignore[no-any-return]
        variables = [self._variables[entry.variable] for entry in vector.entries]
        return tf.function(  # type: ignore[no-any-return]
            lambda: join(vector.entries, [v.read_value() for v in variables]), autograph=False
        )

    def _handles(self) -> dict[int, tf.Variable]:
        """Returns the variables that an update works on, by the indices that it knows them by."""
        handles = dict(self._variables)
        for flat in self._flat:
            handles |= flat.handles() if flat is not None else {}
        return handles

    # ---- in the graph -----------------------------------------------------------------------------------------------

    def _push_plain(self, values: Sequence[tf.Tensor]) -> tf.Tensor:
        """Applies; returns float32 [2], zeros, for which whoever asks for them waits until it is done."""
        self._apply(values)
        return tf.zeros([2])

    def _push_weighed(
        self,
        values: Sequence[tf.Tensor],
        vectors: Sequence[tf.Tensor],
        tables: Sequence[tf.Tensor],
        rho: tf.Tensor,
        count: tf.Tensor,
        prompt: bool,
    ) -> tf.Tensor:
        """Compensates (unless the push is prompt), weighs and applies; returns float32 [2], Σ c² and Σ g²."""
        assert self._memory is not None
        rest, given, squares = list(values), [], [tf.zeros([2])]
        for number, then in enumerate(vectors):
            gradient, square = self._memory.vector(
                number, rest.pop(0), self._gather[number](), then, rho, count, prompt
            )
            given.append(gradient)
            squares.append(square)
        for number, table in enumerate(self._layout.tables):
            if table.gradient is not None:
                rows = rest.pop(0), rest.pop(0)
                now = self._variables[table.variable]
                *pair, square = self._memory.rows(number, rows, now, tables[number], rho, count, prompt)
                given += pair
                squares.append(square)
        if self._rule.weigh is Weigh.RATE_AND_MOMENTUM and not prompt:
            for i, variable in self._handles().items():
                if self._source.variables[i].momentum:
                    variable.assign(variable * tf.cast(rho, variable.dtype))
        self._apply([*given, *rest])
        return tf.add_n(squares)


def _variable(source: program_pb2.StepProgram, index: int) -> tf.Variable:
    spec = source.variables[index].tensor
    return tf.Variable(tf.zeros(shape_of(spec), spec.dtype), trainable=False)
