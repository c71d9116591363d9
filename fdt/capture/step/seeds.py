"""Gives random operations of a traced step the seeds that plain python would give them.

An eager operation without a seed of its own takes one from TensorFlow's context whenever it is run. In a traced step it
would get one seed for all calls, and count by itself. So the client takes the seeds from the context for each step and passes
them as arguments; `random_states` makes the operations that take them.

In a tf.function the operations are numbered, and the number is the seed. A step inlines the functions that it calls, and
numbers the operations of each for themselves, as TensorFlow does.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import random_seed

from fdt.base.patch import Patches

MAX_SEED = 2**31 - 1


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
        token = _of_step.set(self)
        try:
            yield
        finally:
            _of_step.reset(token)

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


class FunctionSeeds:
    """The seeds of a tf.function that is inlined."""

    def __init__(self, caller: "FunctionSeeds | None", called: tuple[Any, str] | None) -> None:
        """
        Args:
            caller: Those of the function that calls it; None if the step itself does.
            called: The function and the form of its arguments if an eager step calls it; None otherwise.
        """
        self._graph = tf.compat.v1.get_default_graph()
        self._outermost: FunctionSeeds = self if caller is None else caller._outermost
        self._called, self._numbered, self._made = called, 0, 0

    def take(self, own: int | None) -> int | None:
        """Returns the seed of the operation that is about to be made, given its own seed, if any."""
        # TensorFlow numbers the operations of a branch or loop for themselves, too.
        if own is not None or self._graph.seed is None or tf.compat.v1.get_default_graph() is not self._graph:
            return own
        self._numbered += 1
        return self._numbered - 1

    def operation(self) -> tuple[Any, str, int] | None:
        """Returns what the operation that is being made is known by, wherever eager steps call the function that it is in.

        Returns:
            The function that a step calls, the form of its arguments, and the operation's number; None if no eager step does.
        """
        outermost = self._outermost
        outermost._made += 1
        return None if outermost._called is None else (*outermost._called, outermost._made)


_of_step: ContextVar[Seeds | None] = ContextVar("fdt_seeds", default=None)
_of_function: ContextVar[FunctionSeeds | None] = ContextVar("fdt_function_seeds", default=None)
# Whether the eager operation that is about to run has a seed of its own.
_has_own: ContextVar[bool] = ContextVar("fdt_has_own_seed", default=False)


def install(patches: Patches) -> None:
    """Puts the hook in place."""
    patches.wrap(random_seed, "get_seed", _get_seed)


def of_step() -> Seeds | None:
    """Returns the seeds of the eager step that is traced; None in a function of the script's."""
    return _of_step.get()


def of_function() -> FunctionSeeds | None:
    """Returns the seeds of the function that is inlined; None in the step itself."""
    return _of_function.get()


def eager_has_own() -> bool:
    """Whether the eager operation that is about to run has a seed of its own."""
    return _has_own.get()


@contextlib.contextmanager
def inlining(function: Any, form: str) -> Iterator[None]:
    """Makes operations take the seeds that they have in a tf.function, while it is traced into a step.

    Args:
        function: The tf.function.
        form: Tells apart calls for which TensorFlow traces it anew.
    """
    caller = _of_function.get()
    seeds = FunctionSeeds(caller, None if _of_step.get() is None else (function, form))
    step, token = _of_step.set(None), _of_function.set(seeds)
    try:
        yield
    finally:
        _of_function.reset(token)
        _of_step.reset(step)


def is_seeded() -> bool:
    """Whether the script has set TensorFlow's global seed; without it no two runs draw the same numbers."""
    return context.global_seed() is not None


def drawn(count: int) -> list[tf.Tensor]:
    """Draws the seeds of one step with `count` operations from the context, as plain python would."""
    if not count:
        return []
    of_context = context.global_seed() % MAX_SEED
    own = [context.internal_operation_seed() % MAX_SEED for _ in range(count)]
    # TensorFlow takes two zeros for no seed at all, and says so.
    seeds = [of_context, *(seed if of_context or seed else MAX_SEED for seed in own)]
    return [tf.constant(seed, tf.int64) for seed in seeds]


def _get_seed(original: Callable[..., Any], op_seed: int | None) -> Any:
    seeds, function = _of_step.get(), _of_function.get()
    if seeds is not None:
        seeds.take(op_seed)
    _has_own.set(op_seed is not None)
    return original(op_seed if function is None else function.take(op_seed))
