"""Splits the arguments of a step of the script's own into data and everything else.

The data travel as a batch of one row, which holds all of them.
"""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.ops import EagerTensor

from fdt.capture.loop.elements import TakenElement, element_of
from fdt.capture.step.conversion import as_declared
from fdt.client.answers import StepResult
from fdt.client.data import feed
from fdt.client.job import Job
from fdt.program.element import Element


class Arguments:
    """The arguments of one call.

    Attributes:
        form: Their structure, constants and specs; calls with an equal key share one traced step.
    """

    def __init__(self, values: Sequence[Any], form: "Form"):
        """
        Args:
            values: The data among the arguments.
            form: See `form`.
        """
        self._values, self.form = values, form

    @classmethod
    def of(cls, function: Any, args: Sequence[Any], kwargs: dict[str, Any], as_they_are: bool = False) -> "Arguments":
        """Splits the arguments.

        Args:
            function: The tf.function that is called.
            args: Positional arguments.
            kwargs: Keyword arguments.
            as_they_are: Whether the step is traced for these shapes alone; else for any number of rows.
        """
        structure = args, kwargs = as_declared(function, args, kwargs)
        leaves: list[Any] = tf.nest.flatten(structure)
        values = [leaf for leaf in leaves if _is_data(leaf)]
        declared = _declared(function, args)
        specs = [_spec(v) if as_they_are else _open(_spec(v), declared.get(id(v))) for v in values]
        constants = [_DATA if _is_data(leaf) else leaf for leaf in leaves]
        return cls(values, Form(structure, constants, specs))

    @property
    def num_rows(self) -> int | None:
        """Size of the first tensor that has a dimension; None if there is none."""
        return next((n for n in map(_first_dimension, self._values) if n is not None), None)

    @property
    def element(self) -> TakenElement | None:
        """The element of a data set that is all of its data."""
        return element_of(self._values)

    def encode(self) -> list[np.ndarray]:
        """Returns the arrays [1, ...] that travel."""
        return self.form.encode(self._values)

    def run(self, job: Job, program: int, lazy: bool) -> StepResult | None:
        """Runs a step on the data, later; see `Job.feed`."""
        return feed(job, program, self.encode(), lazy)

    def place(self) -> str:
        """Returns where the data are read, in words."""
        return "streamed, step by step, as the script makes them"

    def places(self) -> list[int]:
        """Returns the place of each of its data in the element that has all of them."""
        return [value._fdt_place for value in self._values]


class OfElement:
    """The arguments of a call whose data are an element of a data set, as the data set yielded it; has what `Arguments` has.

    Its data travel as a batch of the element's rows.
    """

    def __init__(self, arguments: Arguments, element: TakenElement) -> None:
        self._element, self.num_rows = element, arguments.num_rows
        self.form = ElementForm(arguments.form, element.source.specs, arguments.places())

    def run(self, job: Job, program: int, lazy: bool) -> StepResult | None:
        """See `Arguments`."""
        return self._element.source.run(job, program, self._element, lazy)

    def encode(self) -> list[np.ndarray]:
        """Returns the element's arrays, read on this machine."""
        return [value.numpy() for value in self._element.values()]

    def place(self) -> str:
        """See `Arguments`."""
        return self._element.source.place()


AnyArguments = Arguments | OfElement


class Form:
    """The form of a call's arguments; has the methods of `fdt.program.element.Element` that a trace needs.

    Attributes:
        is_one_row: Whether all data travel as one row.
    """

    is_one_row = True

    def __init__(self, structure: Any, constants: list[Any], specs: list[Any]):
        self._structure, self._constants, self._specs = structure, constants, specs

    @functools.cached_property
    def _element(self) -> Element:
        # Not made for every call: those of a step that is traced need its key alone.
        parts = [part for spec in self._specs for part in tf.nest.flatten(spec, expand_composites=True)]
        rows = [tf.TensorSpec(tf.TensorShape([None]).concatenate(part.shape), part.dtype) for part in parts]
        return Element(rows, list, lambda _, leaves: leaves)

    def key(self) -> Any:
        """Returns a key that is equal for calls which can share one traced step."""
        return tuple(map(_identity, self._constants)), repr(self._specs)

    def specs(self) -> list[tf.TensorSpec]:
        """Returns the specs of the arrays."""
        # A step without any data still has a row, so that it is run once.
        return self._element.specs() or [tf.TensorSpec([None], tf.int32)]

    def encode(self, values: Sequence[Any]) -> list[np.ndarray]:
        """Returns the arrays of the tensors among the arguments."""
        parts = tf.nest.flatten(list(values), expand_composites=True)
        arrays = self._element.encode([np.asarray(part)[None] for part in parts])
        return [np.ascontiguousarray(array) for array in arrays] or [np.zeros(1, np.int32)]

    def decode(self, batch: Sequence[tf.Tensor]) -> Any:
        """Rebuilds (args, kwargs) from the arrays."""
        parts = [row[0] for row in self._element.decode(batch)] if self._specs else []
        return self.rebuilt(tf.nest.pack_sequence_as(self._specs, parts, expand_composites=True))

    def rebuilt(self, data: Sequence[Any]) -> Any:
        """Returns (args, kwargs) with other data."""
        values = iter(data)
        leaves = [next(values) if constant is _DATA else constant for constant in self._constants]
        return tf.nest.pack_sequence_as(self._structure, leaves)


class ElementForm:
    """The form of arguments whose data are an element of a data set; see `Form`."""

    is_one_row = False

    def __init__(self, form: Form, specs: Sequence[tf.TensorSpec], places: Sequence[int]) -> None:
        """
        Args:
            form: Of the arguments.
            specs: Of the element's tensors, flat.
            places: Which of these each of the data is.
        """
        self._form, self._specs, self._places = form, specs, places

    def key(self) -> Any:
        """See `Form`."""
        return self._form.key(), repr(self._specs), tuple(self._places)

    def specs(self) -> list[tf.TensorSpec]:
        """See `Form`."""
        return [tf.TensorSpec([None, *spec.shape[1:]], spec.dtype) for spec in self._specs]

    def decode(self, batch: Sequence[tf.Tensor]) -> Any:
        """See `Form`."""
        return self._form.rebuilt([batch[place] for place in self._places])


# Marks the places of data among the constants.
_DATA = object()


def at_a_glance(function: Any, args: Any, kwargs: dict[str, Any]) -> tuple[list[Any], Any] | None:
    """Returns the data among a call's arguments, and a key: calls with an equal one have arguments of the same form.

    `Arguments.of` takes as long as the rest of a small step. None where there are other data than arrays and eager tensors, or
    where a signature converts them.
    """
    if function.input_signature is not None:
        return None
    values: list[Any] = []
    key: list[Any] = [id(function), len(args), *kwargs]
    for leaf in tf.nest.flatten((args, kwargs)):
        if type(leaf) is np.ndarray:
            key.append((leaf.dtype, leaf.shape))
        elif type(leaf) is EagerTensor:
            key.append((leaf.dtype, tuple(leaf.shape)))
        elif _is_data(leaf):
            return None
        else:
            key.append(_identity(leaf))
            continue
        values.append(leaf)
    return values, tuple(key)


def _is_data(leaf: Any) -> bool:
    if isinstance(leaf, tf.Variable):
        return False
    return isinstance(leaf, np.ndarray | np.generic | tf.Tensor | tf.RaggedTensor | tf.SparseTensor)


def _first_dimension(value: Any) -> int | None:
    shape = value.shape
    return int(shape[0]) if len(shape) else None


def _spec(value: Any) -> Any:
    if not isinstance(value, np.ndarray | np.generic):
        return tf.type_spec_from_value(value)
    return tf.TensorSpec(value.shape, tf.string if value.dtype.kind in "OSU" else tf.dtypes.as_dtype(value.dtype))


def _open(spec: Any, declared: tf.TensorShape | None) -> Any:
    """Returns a spec for any number of rows, and for any size that the function declares so; sparse tensors are of any size."""
    if isinstance(spec, tf.SparseTensorSpec):
        return tf.SparseTensorSpec([None] * spec.shape.rank, spec.dtype)
    if isinstance(spec, tf.TensorSpec) and spec.shape.rank:
        same = spec.shape if declared is None or declared.rank != spec.shape.rank else declared
        return tf.TensorSpec(
            [None, *(size and known for size, known in zip(same[1:], spec.shape[1:], strict=True))], spec.dtype
        )
    return spec


def _declared(function: Any, args: Sequence[Any]) -> dict[int, tf.TensorShape]:
    """Returns the shapes that a tf.function's signature declares for its positional arguments, by the arguments' ids."""
    pairs = zip(args, function.input_signature or (), strict=False)
    return {id(value): spec.shape for value, spec in pairs if isinstance(spec, tf.TensorSpec)}


def _identity(constant: Any) -> Any:
    """Returns a constant's key: type and value of a number or string, the id of any other object."""
    if isinstance(constant, str | bytes | bool | int | float | type(None)):
        return type(constant), constant
    return id(constant)
