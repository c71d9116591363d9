"""Gives random operations of an eager step the seeds that plain python would give them.

An eager operation without a seed of its own takes one from TensorFlow's context whenever it is run. In a traced step it
would get one seed for all calls, and count by itself. So the client takes the seeds from the context for each step and passes
them as arguments. The step has stateless operations of the same algorithm (Philox): the seed of the context is their key, the
seed of the operation the upper half of their counter (`PhiloxRandom(seed_lo, seed_hi)` in TensorFlow's philox_random.h).

An operation of a traced step counts the numbers it has drawn, over batches of all sizes. Workers have a graph for each size,
so there a variable of the step keeps the count, which is the lower half of the operation's counter.

Eager operations with a seed of their own (`tf.random.normal(…, seed=7)`) count together, wherever they stand, if they are of
one kind and have the same seed: TensorFlow has one kernel for them. So their steps share a variable, which begins at what was
drawn before, and which what the script draws beside its steps counts on.
"""

import collections
import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import random_seed
from tensorflow.python.ops import gen_random_ops, gen_stateless_random_ops_v2

from fdt.base.patch import Patches
from fdt.capture.step.variables import created_outside

_PHILOX, _MAX_SEED = 1, 2**31 - 1
# By how many values a stateful operation advances its counter for each number (`kReservedSamplesPerOutput` in
# TensorFlow's random_op_cpu.h, random_op_gpu.h).
_RESERVED = 256
_STATELESS: dict[str, Callable[..., tf.Tensor]] = {
    "random_standard_normal": gen_stateless_random_ops_v2.stateless_random_normal_v2,
    "random_uniform": gen_stateless_random_ops_v2.stateless_random_uniform_v2,
    "truncated_normal": gen_stateless_random_ops_v2.stateless_truncated_normal_v2,
    "random_uniform_int": gen_stateless_random_ops_v2.stateless_random_uniform_int_v2,
}


class Seeds:
    """The seeds of a step while it is traced.

    Attributes:
        count: Number of its operations that have taken a seed.
    """

    def __init__(self, given: Sequence[tf.Tensor]) -> None:
        """
        Args:
            given: int64 scalars: the context's seed, and one for each operation; empty if their number is not known yet.
        """
        self.count = 0
        self._given = given
        self._graph = tf.compat.v1.get_default_graph()
        # The seed of the operation that is about to be made.
        self._next: tf.Tensor | None = None
        self._has_own = False

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Makes operations of the step take these seeds."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def take(self, own: int | None) -> None:
        """Called when a random operation with this seed of its own, if any, is about to be made."""
        self._next = None
        # An operation in a function of the script's keeps one seed, and counts by itself, in plain python too.
        is_of_step = tf.compat.v1.get_default_graph() is self._graph
        self._has_own = own is not None and is_of_step
        if own is None and self._graph.seed is not None and is_of_step:
            self.count += 1
            self._next = self._given[self.count] if self.count < len(self._given) else None

    def key_and_counter(self) -> tuple[tf.Tensor, tf.Tensor] | None:
        """Returns uint64 [1] and uint64 [2] for the operation that is being made; None if it stays a stateful one."""
        seed, self._next = self._next, None
        if seed is None:
            return None
        key, counter = tf.reshape(self._given[0], [1]), tf.stack([tf.zeros([], tf.int64), seed])
        return tf.cast(key, tf.uint64), tf.cast(counter, tf.uint64)

    def has_own(self) -> bool:
        """Whether the operation that is being made has a seed of its own, as one of the step."""
        has_own, self._has_own = self._has_own, False
        return has_own


_current: ContextVar[Seeds | None] = ContextVar("fdt_seeds", default=None)
# Whether the eager operation that is about to run has a seed of its own.
_has_own: ContextVar[bool] = ContextVar("fdt_has_own_seed", default=False)


class _Kernels:
    """What eager operations with seeds of their own have drawn since the global seed was set, by kernel."""

    def __init__(self) -> None:
        self._drawn = collections.Counter[Any]()
        # Of those that stand in steps, int64 [seed, count of numbers].
        self._states = dict[Any, tf.Variable]()

    def begin_again(self, seed: int | None) -> None:
        """Called when the script sets the global seed: TensorFlow then makes its kernels anew."""
        self._drawn.clear()
        for state in self._states.values():
            state.assign([_of_context(seed), 0])

    def has(self, state: tf.Variable) -> bool:
        """Whether a variable is one in which such operations count."""
        return any(state is each for each in self._states.values())

    def state(self, key: Any) -> tf.Variable:
        """Returns the variable in which the steps' operations of a kernel count."""
        if key not in self._states:
            start = [_of_context(context.global_seed()), self._drawn[key]]
            self._states[key] = created_outside(
                initial_value=start, dtype=tf.int64, trainable=False, name="random_state"
            )
        return self._states[key]

    def draw(self, draw: Callable[[], tf.Tensor], key: Any, again: Callable[[tf.Variable], tf.Tensor]) -> tf.Tensor:
        """Draws beside the steps.

        Args:
            draw: Has TensorFlow's kernel draw.
            key: What the kernel is known by.
            again: Draws by the state that it is given.
        """
        if key in self._states:
            return again(self._states[key])
        values = draw()
        self._drawn[key] += int(values.shape.num_elements())
        return values


_kernels = _Kernels()


def is_of_kernel(state: tf.Variable) -> bool:
    """Whether a random state is that of eager operations, which count on in steps for all sizes."""
    return _kernels.has(state)


def _of_context(seed: int | None) -> int:
    """Returns what TensorFlow takes for the global seed beside a seed of an operation's own."""
    return random_seed.DEFAULT_GRAPH_SEED if seed is None else seed % _MAX_SEED


def install(patches: Patches) -> None:
    """Puts the hooks in place."""
    patches.wrap(random_seed, "get_seed", _get_seed)
    patches.wrap(context.Context, "_set_global_seed", _set_global_seed)
    for name, stateless in _STATELESS.items():
        patches.wrap(gen_random_ops, name, _drawing(name, stateless))


def keep_in_variables(patches: Patches, record: Callable[[tf.Variable], None]) -> None:
    """Makes random operations count in variables what they have drawn: int64 [seed, count of numbers].

    Args:
        patches: The patches of a trace.
        record: Called with each variable.
    """
    for name, stateless in _STATELESS.items():
        patches.wrap(gen_random_ops, name, _counting(name, stateless, record))


@contextlib.contextmanager
def none_taken() -> Iterator[None]:
    """Takes no seeds while a function of the script's own is traced into the step."""
    token = _current.set(None)
    try:
        yield
    finally:
        _current.reset(token)


def is_seeded() -> bool:
    """Whether the script has set TensorFlow's global seed; without it no two runs draw the same numbers."""
    return context.global_seed() is not None


def drawn(count: int) -> list[tf.Tensor]:
    """Draws the seeds of one step with `count` operations from the context, as plain python would."""
    if not count:
        return []
    of_context = context.global_seed() % _MAX_SEED
    own = [context.internal_operation_seed() % _MAX_SEED for _ in range(count)]
    # TensorFlow takes two zeros for no seed at all, and says so.
    seeds = [of_context, *(seed if of_context or seed else _MAX_SEED for seed in own)]
    return [tf.constant(seed, tf.int64) for seed in seeds]


def _get_seed(original: Callable[..., Any], op_seed: int | None) -> Any:
    seeds = _current.get()
    if seeds is not None:
        seeds.take(op_seed)
    _has_own.set(op_seed is not None)
    return original(op_seed)


def _set_global_seed(original: Callable[..., None], of: Any, seed: int | None) -> None:
    original(of, seed)
    _kernels.begin_again(seed)


def _counting(
    name: str, stateless: Callable[..., tf.Tensor], record: Callable[[tf.Variable], None]
) -> Callable[..., Any]:
    def draw(original: Callable[..., Any], shape: Any, *args: Any, seed: Any, seed2: Any, **kwargs: Any) -> Any:
        seeds = _current.get()
        if tf.executing_eagerly():
            return original(shape, *args, seed=seed, seed2=seed2, **kwargs)
        if seeds is not None:
            if not seeds.has_own():
                return original(shape, *args, seed=seed, seed2=seed2, **kwargs)
            state = _kernels.state(_key(name, args, seed2))
        else:
            if not seed and not seed2:
                # Without a seed, plain python draws other numbers in each run.
                seed = int.from_bytes(os.urandom(4)) % _MAX_SEED + 1
            state = created_outside(initial_value=[seed, 0], dtype=tf.int64, trainable=False, name="random_state")
        record(state)
        return _counted(state, seed2, stateless, shape, args, kwargs)

    return draw


def _counted(
    state: tf.Variable, seed2: Any, stateless: Callable[..., tf.Tensor], shape: Any, args: Any, kwargs: Any
) -> tf.Tensor:
    """Draws by a state, which is counted on."""
    key, drawn = tf.unstack(state.read_value())
    counter = tf.stack([_RESERVED * drawn, tf.constant(seed2 or 0, tf.int64)])
    keys = tf.cast(tf.reshape(key, [1]), tf.uint64), tf.cast(counter, tf.uint64)
    added = tf.stack([tf.zeros([], tf.int64), tf.reduce_prod(tf.cast(shape, tf.int64))])
    if tf.executing_eagerly():
        state.assign_add(added)
    else:
        # Not by the variable's method: a step that calls it adds to a variable of the script's.
        tf.raw_ops.AssignAddVariableOp(resource=state.handle, value=added)
    return stateless(shape, *keys, _PHILOX, *args, **kwargs)


def _key(name: str, args: Sequence[Any], seed2: Any) -> Any:
    """Returns what the kernel of an eager operation with a seed of its own is known by; the global seed is the same for all."""
    dtype = args[0].dtype if name == "random_uniform_int" else tf.as_dtype(args[0])
    return name, dtype, int(seed2 or 0)


def _drawing(name: str, stateless: Callable[..., tf.Tensor]) -> Callable[..., Any]:
    def draw(original: Callable[..., Any], shape: Any, *args: Any, **kwargs: Any) -> Any:
        seeds = _current.get()
        rest = {name: value for name, value in kwargs.items() if name not in ("seed", "seed2")}
        if tf.executing_eagerly() and _has_own.get():
            return _kernels.draw(
                lambda: original(shape, *args, **kwargs),
                _key(name, args, kwargs.get("seed2")),
                lambda state: _counted(state, kwargs.get("seed2"), stateless, shape, args, rest),
            )
        if tf.executing_eagerly() or seeds is None:
            return original(shape, *args, **kwargs)
        if seeds.has_own():
            state = _kernels.state(_key(name, args, kwargs.get("seed2")))
            return _counted(state, kwargs.get("seed2"), stateless, shape, args, rest)
        taken = seeds.key_and_counter()
        return original(shape, *args, **kwargs) if taken is None else stateless(shape, *taken, _PHILOX, *args, **rest)

    return draw
