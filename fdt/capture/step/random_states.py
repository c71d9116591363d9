"""Counts in variables what the random operations of traced steps draw.

A random operation of a tf.function counts the numbers that it has drawn. Workers have a graph for each size of a batch, so a
variable of the step keeps the count, and the step has stateless operations of the same algorithm (Philox): the seed of the
graph is their key; the count, and the seed of the operation, are the halves of their counter (`PhiloxRandom(seed_lo, seed_hi)`
in TensorFlow's philox_random.h). Operations that get a seed in each step (`seeds`) have no count.

Operations of eager steps share a variable where TensorFlow has one kernel for them: those of one kind with the same seed of
their own (`tf.random.normal(…, seed=7)`), which count on wherever they are drawn, and those of a tf.function that steps call.
"""

import collections
import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import random_seed
from tensorflow.python.ops import gen_random_ops, gen_stateless_random_ops_v2

from fdt.base.patch import Patches
from fdt.capture.step import seeds
from fdt.capture.step.seeds import MAX_SEED
from fdt.capture.step.variables import created_outside
from fdt.capture.traces import named
from fdt.client.report import say

_PHILOX = 1
# By how many values a stateful operation advances its counter for each number (`kReservedSamplesPerOutput` in
# TensorFlow's random_op_cpu.h, random_op_gpu.h).
_RESERVED = 256
_STATELESS: dict[str, Callable[..., tf.Tensor]] = {
    "random_standard_normal": gen_stateless_random_ops_v2.stateless_random_normal_v2,
    "random_uniform": gen_stateless_random_ops_v2.stateless_random_uniform_v2,
    "truncated_normal": gen_stateless_random_ops_v2.stateless_truncated_normal_v2,
    "random_uniform_int": gen_stateless_random_ops_v2.stateless_random_uniform_int_v2,
}


class _Kernels:
    """What random operations have drawn, by TensorFlow's kernels."""

    def __init__(self) -> None:
        # Numbers that eager operations with seeds of their own have drawn beside the steps, by kernel.
        self._drawn = collections.Counter[Any]()
        # int64 [seed, count of numbers] of those that stand in steps.
        self._eager = dict[Any, tf.Variable]()
        # The same of operations in tf.functions that eager steps call, and of all operations in tf.functions, by id.
        self._called = WeakKeyDictionary[Any, dict[Any, tf.Variable]]()
        self._in_functions = WeakValueDictionary[int, tf.Variable]()
        # The functions that the script has called beside its steps, and those of which the user was told.
        self._called_beside, self._told = WeakSet[Any](), WeakSet[Any]()

    def begin_again(self) -> None:
        """Called when TensorFlow makes its kernels anew: the script has set the global seed, or cleared Keras's session."""
        self._drawn.clear()
        with tf.init_scope():
            for state in list(self._eager.values()):
                state.assign([_seed_of_context(), 0])
            for state in list(self._in_functions.values()):
                # A function that has been traced keeps its seed.
                state.assign(state * [1, 0])

    def is_of_eager(self, state: tf.Variable) -> bool:
        """Whether eager operations with seeds of their own count in a variable."""
        return any(state is each for each in self._eager.values())

    def of_eager(self, key: Any) -> tf.Variable:
        """Returns the variable in which the steps' eager operations of a kernel count."""
        if key not in self._eager:
            self._eager[key] = _state(_seed_of_context(), self._drawn[key])
        return self._eager[key]

    def in_function(self, seed: int | None) -> tf.Variable:
        """Returns a new variable in which an operation in a tf.function counts.

        Args:
            seed: The function's; None if neither it nor the operation has one.
        """
        if seed is None:
            # Plain python draws other numbers in each run.
            return _state(int.from_bytes(os.urandom(4)) % MAX_SEED + 1)
        state = _state(seed)
        self._in_functions[id(state)] = state
        return state

    def in_called(self, seed: int | None, function: Any, operation: Any) -> tf.Variable:
        """Returns the variable in which an operation in a tf.function counts, wherever eager steps call it.

        Args:
            seed: See `in_function`.
            function: The tf.function.
            operation: What the operation is known by.
        """
        if seed is None:
            return self.in_function(None)
        states = self._called.setdefault(function, {})
        if function in self._called_beside:
            self._tell(function)
        if operation not in states:
            states[operation] = self.in_function(seed)
        return states[operation]

    def called_beside(self, function: Any) -> None:
        """Called when the script calls a tf.function beside its steps: there TensorFlow's kernels draw."""
        self._called_beside.add(function)
        if function in self._called:
            self._tell(function)

    def _tell(self, function: Any) -> None:
        if function not in self._told:
            self._told.add(function)
            say(
                f"warning: {named(function)} draws random numbers in steps outside a tf.function and beside them, and so "
                "other numbers than in plain python, from the same distribution"
            )

    def draw(self, draw: Callable[[], tf.Tensor], key: Any, again: Callable[[tf.Variable], tf.Tensor]) -> tf.Tensor:
        """Draws beside the steps.

        Args:
            draw: Has TensorFlow's kernel draw.
            key: What the kernel is known by.
            again: Draws by the state that it is given.
        """
        if key in self._eager:
            return again(self._eager[key])
        values = draw()
        self._drawn[key] += int(values.shape.num_elements())
        return values


_kernels = _Kernels()
# The sizes of the arguments of the step that is traced: plain python has other kernels for other sizes.
_sizes: ContextVar[str] = ContextVar("fdt_sizes", default="")


def install(patches: Patches) -> None:
    """Puts the hooks in place."""
    seeds.install(patches)
    for name in ("_set_global_seed", "clear_kernel_cache"):
        patches.wrap(context.Context, name, _beginning_again)
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
def of_sizes(sizes: str) -> Iterator[None]:
    """Tells which sizes a step is traced for."""
    token = _sizes.set(sizes)
    try:
        yield
    finally:
        _sizes.reset(token)


def count_for_all_sizes(states: Sequence[tf.Variable]) -> bool:
    """Whether random states count on in the steps for all sizes: those of eager operations do."""
    return all(map(_kernels.is_of_eager, states))


def called_beside(function: Any) -> None:
    """Called when the script calls a tf.function beside its steps."""
    _kernels.called_beside(function)


def _beginning_again(original: Callable[..., None], of: Any, *args: Any) -> None:
    original(of, *args)
    _kernels.begin_again()


def _state(seed: int, count: int = 0) -> tf.Variable:
    return created_outside(initial_value=[seed, count], dtype=tf.int64, trainable=False, name="random_state")


def _seed_of_context() -> int:
    """Returns what TensorFlow takes for the global seed beside a seed of an operation's own."""
    seed = context.global_seed()
    return random_seed.DEFAULT_GRAPH_SEED if seed is None else seed % MAX_SEED


def _counting(
    name: str, stateless: Callable[..., tf.Tensor], record: Callable[[tf.Variable], None]
) -> Callable[..., Any]:
    def draw(original: Callable[..., Any], shape: Any, *args: Any, seed: Any, seed2: Any, **kwargs: Any) -> Any:
        of_step, of_function = seeds.of_step(), seeds.of_function()
        if tf.executing_eagerly() or (of_step is not None and not of_step.has_own()):
            return original(shape, *args, seed=seed, seed2=seed2, **kwargs)
        if of_step is not None:
            state = _kernels.of_eager(_kernel(name, args, seed2))
        else:
            of_graph = seed or 0 if seed or seed2 else None
            called = None if of_function is None else of_function.operation()
            state = (
                _kernels.in_function(of_graph)
                if called is None
                else _kernels.in_called(of_graph, called[0], (*called[1:], _sizes.get()))
            )
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


def _kernel(name: str, args: Sequence[Any], seed2: Any) -> Any:
    """Returns what the kernel of an eager operation with a seed of its own is known by; the global seed is the same for all."""
    dtype = args[0].dtype if name == "random_uniform_int" else tf.as_dtype(args[0])
    return name, dtype, int(seed2 or 0)


def _drawing(name: str, stateless: Callable[..., tf.Tensor]) -> Callable[..., Any]:
    def draw(original: Callable[..., Any], shape: Any, *args: Any, **kwargs: Any) -> Any:
        of_step = seeds.of_step()
        rest = {name: value for name, value in kwargs.items() if name not in ("seed", "seed2")}
        if tf.executing_eagerly() and seeds.eager_has_own():
            return _kernels.draw(
                lambda: original(shape, *args, **kwargs),
                _kernel(name, args, kwargs.get("seed2")),
                lambda state: _counted(state, kwargs.get("seed2"), stateless, shape, args, rest),
            )
        if tf.executing_eagerly() or of_step is None:
            return original(shape, *args, **kwargs)
        if of_step.has_own():
            state = _kernels.of_eager(_kernel(name, args, kwargs.get("seed2")))
            return _counted(state, kwargs.get("seed2"), stateless, shape, args, rest)
        taken = of_step.key_and_counter()
        return original(shape, *args, **kwargs) if taken is None else stateless(shape, *taken, _PHILOX, *args, **rest)

    return draw
