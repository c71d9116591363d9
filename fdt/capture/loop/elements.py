"""Yields elements of data sets whose rows are files without reading them; the step that takes one is told its rows' numbers.

    for images, labels in dataset_of_files.batch(32):
        loss = train_step(images, labels)

An element's tensors are read, on this machine, when the script looks at them. Where a step takes them as they are, the workers
read its rows (`fdt.client.data.ReadBatches`). Only loops of the script's own get such elements, not those of Keras.
"""

import collections
import contextlib
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf
from tensorflow.python.data.ops.iterator_ops import IteratorSpec, OwnedIterator

from fdt.base.config import RunConfig
from fdt.base.patch import Patches
from fdt.capture.loop.pending import PendingTensor
from fdt.capture.rows import RowNumbers, Rows
from fdt.client.answers import StepResult
from fdt.client.data import ReadBatches, feed
from fdt.client.job import Job
from fdt.client.report import say
from fdt.errors import UnsupportedError
from fdt.program.row_reader import UnreadableRowError

# This machine reads a data set's elements ahead when the script has looked at so many of them, and at half of all.
_FEW_LOOKS = 3
# Batches that are read while the script has one.
_AHEAD = 2
# What iterates for itself or passes an iterator on: no loop of the script's own.
_LIBRARIES = ("keras", "tf_keras", "tensorflow")


class RowSource:
    """The rows of one data set.

    Attributes:
        numbers: The data set of its rows' numbers, in its order.
        specs: What is known of an element's tensors, flat.
        is_read_here: Whether elements are read on this machine, since the script looks at most, or the workers lack the files.
    """

    def __init__(self, rows: Rows, config: RunConfig) -> None:
        assert rows.files is not None
        self.numbers, self._structure, self._config = rows.numbers, rows.structure, config
        self.specs: list[tf.TensorSpec] = tf.nest.flatten(rows.structure)
        self.is_read_here = False
        self._batches = ReadBatches(rows.files, rows.structure, rows.batch_size, tf.nest, rows.rows_told)
        self._job: Job | None = None
        # The pass whose element was run last.
        self._pass: _Pass | None = None
        self._thread: ThreadPoolExecutor | None = None

    def element(self, numbers: tf.Tensor, of_pass: "_Pass") -> Any:
        """Returns an element, nested as the data set's are, whose tensors are pending.

        Args:
            numbers: Its rows', int64 [batch].
            of_pass: The pass that takes it.
        """
        element = TakenElement(self, numbers, of_pass)
        return tf.nest.pack_sequence_as(self._structure, element.tensors())

    def values(self, numbers: tf.Tensor) -> list[tf.Tensor]:
        """Reads an element's tensors on this machine.

        Raises:
            OpError: As TensorFlow would have raised it.
        """
        try:
            return [tf.constant(array) for array in self._batches.encode(numbers)]
        except UnreadableRowError as error:
            raised = tf.compat.v1.errors.exception_type_from_error_code(error.step_code)
            raise raised(None, None, str(error)) from None

    def read(self, numbers: tf.Tensor) -> "Future[Any]":
        """Begins to read an element; see `values`."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="fdt-read")
        return self._thread.submit(lambda: tf.nest.pack_sequence_as(self._structure, self.values(numbers)))

    def place(self) -> str:
        """Returns where the data are read, in words."""
        return self._batches.place()

    def run(self, job: Job, program: int, element: "TakenElement", lazy: bool) -> StepResult | None:
        """Runs a step on an element, later; see `Job.run`."""
        if self._job is None:
            self._ask(job)
        elif self._job is not job:
            self._batches.begin(job)
        elif element.of_pass is not self._pass:
            # Between two passes the script may change its files.
            job.snapshot()
        self._job, self._pass = job, element.of_pass
        if not self.is_read_here:
            return self._batches.run(job, program, element.numbers, lazy)
        return feed(job, program, [value.numpy() for value in element.values()], lazy)

    def _ask(self, job: Job) -> None:
        config = self._config
        missing = self._batches.missing(job, identified=config.is_elsewhere, mapped=config.mapped_folders)
        self.is_read_here = bool(missing)
        say(f"data: their files are read on this machine: {missing}" if missing else f"data: {self.place()}")


class TakenElement:
    """One element that a loop has taken.

    Attributes:
        source: Where its rows are from.
        numbers: Its rows', int64 [batch].
        of_pass: The pass that took it.
    """

    def __init__(self, source: RowSource, numbers: tf.Tensor, of_pass: "_Pass") -> None:
        self.source, self.numbers, self.of_pass = source, numbers, of_pass
        self._values: list[tf.Tensor] | None = None

    def tensors(self) -> list["ElementTensor"]:
        """Returns its tensors, pending, flat."""
        length = self.numbers.shape[0]
        shapes = [tf.TensorShape([length, *spec.shape[1:]]) for spec in self.source.specs]
        return [ElementTensor(self, place, shape) for place, shape in enumerate(shapes)]

    def values(self) -> list[tf.Tensor]:
        """Returns its tensors' values."""
        if self._values is None:
            self.of_pass.look()
            self._values = self.source.values(self.numbers)
        return self._values


class ElementTensor(PendingTensor):
    """A tensor of an element."""

    def __init__(self, element: TakenElement, place: int, shape: tf.TensorShape) -> None:
        super().__init__(element.source.specs[place].dtype, shape, lambda: element.values()[place])
        object.__setattr__(self, "_fdt_element", element)
        object.__setattr__(self, "_fdt_place", place)

    def __getattribute__(self, name: str) -> Any:
        """Describes itself to a function that is called with it, without being read."""
        if name == "__tf_tracing_type__":
            return lambda context: tf.Tensor.__tf_tracing_type__(self, context)
        return super().__getattribute__(name)


def element_of(values: Sequence[Any]) -> TakenElement | None:
    """Returns the element to which all of a call's data belong; None if there is none."""
    elements = {id(v._fdt_element): v._fdt_element for v in values if isinstance(v, ElementTensor)}
    is_one = len(elements) == 1 and all(isinstance(value, ElementTensor) for value in values)
    return next(iter(elements.values())) if is_one else None


class _Pass:
    """One pass of the script's over a data set.

    Attributes:
        taken: How many elements the script has taken.
    """

    def __init__(self, source: RowSource, numbers: Callable[[], tf.Tensor], looks_count: bool) -> None:
        """
        Args:
            source: Where rows are from.
            numbers: Returns the next element's rows; raises OutOfRangeError if there is none.
            looks_count: Whether elements are read here once the script looks at most.
        """
        self._looks_count = looks_count
        self.source, self.taken, self._looks, self._numbers = source, 0, 0, numbers
        self._ahead: collections.deque[Future[Any]] = collections.deque()

    def next(self) -> Any:
        """Returns the next element.

        Raises:
            OutOfRangeError: There is none.
        """
        if not self.source.is_read_here:
            numbers = self._numbers()
            self.taken += 1
            return self.source.element(numbers, self)
        with contextlib.suppress(tf.errors.OutOfRangeError):
            while len(self._ahead) <= _AHEAD:
                self._ahead.append(self.source.read(self._numbers()))
        if not self._ahead:
            self._numbers()
        self.taken += 1
        return self._ahead.popleft().result()

    def look(self) -> None:
        """Counts an element at which the script looks."""
        self._looks += 1
        if self._looks_count and self._looks >= _FEW_LOOKS and 2 * self._looks >= self.taken:
            self.source.is_read_here = True


class Elements:
    """The hooks."""

    def __init__(self, row_numbers: RowNumbers, config: RunConfig, looks_count: bool = True) -> None:
        """
        Args:
            row_numbers: Knows the order of the script's data sets.
            config: The run's configuration.
            looks_count: False where steps are made on this machine, too, which look at all elements.
        """
        self._row_numbers, self._config, self._looks_count = row_numbers, config, looks_count
        # None: the script's iterators read for themselves.
        self._sources: WeakKeyDictionary[Any, RowSource | None] = WeakKeyDictionary()
        self._passes: WeakKeyDictionary[Any, _Pass] = WeakKeyDictionary()

    def install(self, patches: Patches) -> None:
        """Puts the hooks in place."""
        self._row_numbers.to_follow = self._to_follow
        patches.wrap(OwnedIterator, "_next_internal", self._next)
        # Whatever else is done with an iterator finds it where the script is.
        patches.wrap(OwnedIterator, "get_next_as_optional", self._itself)
        patches.wrap(OwnedIterator, "_serialize_to_tensors", self._itself)
        patches.wrap(OwnedIterator, "_restore_from_tensors", self._itself)
        patches.wrap(IteratorSpec, "_to_components", self._components)

    def _to_follow(self, dataset: Any) -> tf.data.Dataset | None:
        """See `RowNumbers.to_follow`."""
        if not _is_scripts_own():
            return None
        if dataset not in self._sources:
            rows = self._row_numbers.of_files(dataset, self._config.admitted, self._config.is_elsewhere)
            # What the script looks at is to have plain python's bits.
            is_read = rows is not None and rows.files is not None and rows.files.to_the_bit
            self._sources[dataset] = RowSource(rows, self._config) if rows is not None and is_read else None
        source = self._sources[dataset]
        return None if source is None else source.numbers

    def _next(self, original: Callable[[Any], Any], iterator: Any) -> Any:
        follower = self._row_numbers.followers.get(iterator)
        if follower is None or not tf.executing_eagerly():
            return original(iterator)
        if iterator not in self._passes:
            source = self._sources[iterator._dataset]
            assert source is not None
            self._passes[iterator] = _Pass(source, lambda: original(follower), self._looks_count)
        now = self._passes[iterator]
        if not now.taken:
            self._row_numbers.begin_beneath(iterator._dataset)
        return now.next()

    def _itself(self, original: Callable[..., Any], iterator: Any, *args: Any, **kwargs: Any) -> Any:
        self._leave(iterator)
        return original(iterator, *args, **kwargs)

    def _components(self, original: Callable[..., Any], spec: Any, iterator: Any) -> Any:
        self._leave(iterator)
        return original(spec, iterator)

    def _leave(self, iterator: Any) -> None:
        """Has an iterator read for itself, from where the script is."""
        follower = self._row_numbers.followers.pop(iterator, None)
        now = self._passes.pop(iterator, None)
        if follower is None or now is None:
            return
        if not self._row_numbers.is_in_one_order(iterator._dataset):
            raise UnsupportedError(
                "A loop has taken elements of an iterator over files that are shuffled without a seed, or twice, and now the "
                "iterator is used otherwise. Give the shuffle a seed, or use one iterator for each."
            )
        for _ in range(now.taken):
            iterator._next_internal()


def _is_scripts_own() -> bool:
    """Whether the script, and no library that iterates for itself, begins an iterator."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith(("fdt.", "tensorflow.python.data.ops.")):
            return not name.startswith(_LIBRARIES)
        frame = frame.f_back  # type: ignore[assignment]
    return False
