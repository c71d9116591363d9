"""Makes a step that only computes: data from iterators come in as arguments, summaries and prints go out as outputs."""

import functools
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf
from tensorflow.python.data.ops.iterator_ops import OwnedIterator

from fdt.base.patch import Patches
from fdt.capture.loop import iterators, prints
from fdt.capture.loop.iterators import Read
from fdt.capture.loop.prints import Printed
from fdt.capture.step import summaries
from fdt.capture.step.inlining import in_graph
from fdt.capture.step.summaries import Recording


class Outside:
    """Finds the script's functions with side effects, and makes functions of them that only compute."""

    def __init__(self) -> None:
        """Knows no functions yet."""
        # By traced function: its reads from iterators, and whether it writes summaries or prints.
        self._known: WeakKeyDictionary[Any, tuple[list[Read], bool]] = WeakKeyDictionary()
        # By id of a function, which is kept alive so that the id stays unique.
        self._computing: dict[int, tuple[Any, ComputingStep]] = {}
        self._iterators: dict[str, Any] = {}

    def install(self, patches: Patches) -> None:
        """Puts the hooks in place."""
        iterators.install(patches)
        prints.install(patches)
        summaries.install(patches)

    def computing(self, concrete: Any, function: Any) -> "ComputingStep | None":
        """Returns the step that replaces a function on the pool; None if the function itself only computes.

        Args:
            concrete: The function's trace for this call.
            function: The tf.function.

        Raises:
            UnsupportedError: It takes elements in a loop or branch of the graph.
        """
        if concrete not in self._known:
            graph = concrete.graph
            self._known[concrete] = iterators.reads_of(graph), summaries.writes_summaries(graph) or prints.prints(graph)
        reads, writes = self._known[concrete]
        if not reads and not writes:
            return None
        if id(function) not in self._computing:
            self._computing[id(function)] = function, ComputingStep(function)
        return self._computing[id(function)][1]

    def drop(self, function: Any) -> Any:
        """Forgets a tf.function; returns that of the step in its place, None if there is none."""
        found = self._computing.pop(id(function), None)
        return None if found is None else found[1].function

    def arguments(self, concrete: Any, inputs: Sequence[tf.Tensor], args: Any, kwargs: Any) -> tuple[Any, ...]:
        """Takes the elements from the iterators, and returns the arguments for `ComputingStep.function`.

        Args:
            concrete: See `computing`.
            inputs: Its inputs, captured ones included.
            args: Positional arguments of the script's call.
            kwargs: Keyword arguments of the script's call.

        Raises:
            OutOfRangeError: An iterator has no more.
        """
        elements = [list(read.take(inputs)) for read in self._known[concrete][0]]
        return elements, *tf.nest.map_structure(self._alike, (args, kwargs))

    def _alike(self, leaf: Any) -> Any:
        """Returns, for an iterator, the first one with such elements, so that a new epoch's iterator makes no new step."""
        return self._iterators.setdefault(repr(leaf.element_spec), leaf) if isinstance(leaf, OwnedIterator) else leaf


class ComputingStep:
    """A step of the script's that takes elements as an argument, and returns the values of its summaries and what it prints.

    Attributes:
        function: tf.function of (elements, args, kwargs).
    """

    def __init__(self, original: Any):
        """Makes the computing step of a tf.function."""
        # Of the last trace.
        self._recording: Recording | None = None
        self._printed: list[Printed] = []

        @functools.wraps(original.python_function)
        def step(elements: Any, args: Any, kwargs: Any) -> Any:
            with (
                iterators.feeding(elements),
                summaries.recording() as self._recording,
                prints.recording() as self._printed,
            ):
                result = in_graph(original)(*args, **kwargs)
            return result, self._recording.tensors(), [value for printed in self._printed for value in printed.values]

        # The signature is not the original's.
        del step.__wrapped__  # type: ignore[attr-defined]
        self.function = tf.function(step, autograph=False)

    def outputs(self, outputs: list[tf.Tensor], pretended: bool) -> list[tf.Tensor]:
        """Returns what the script's function returns; writes the summaries, and prints.

        Args:
            outputs: Of `function`, flat.
            pretended: Whether they are placeholders.
        """
        assert self._recording is not None
        printed = len(outputs) - sum(len(each.values) for each in self._printed)
        count = printed - len(self._recording.tensors())
        if not pretended:
            summaries.write(self._recording.summaries, outputs[count:printed])
            prints.write(self._printed, outputs[printed:])
        return outputs[:count]
