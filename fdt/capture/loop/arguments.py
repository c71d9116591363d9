"""The arguments of a step of the script's own: what is divided by rows, what goes to every worker, what is no data.

Those of a step that cannot be divided travel as a batch of one row, which holds everything.
"""

import enum
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.element import Element

# Of what goes to every worker: it travels once a row.
_MAX_WHOLE_BYTES = 1 << 20


class Travel(enum.Enum):
    """How the tensors of a call travel."""

    ROWS = "divided by rows"
    WHOLE = "as one row"
    # For a step that asks for its batch's number of rows while it is traced.
    WHOLE_AS_THEY_ARE = "as one row, traced for these shapes alone"


class Arguments:
    """The arguments of one call.

    The first tensor that has a dimension tells the number of rows; all that have as many are divided by rows. The
    others are the same for all rows.

    Attributes:
        num_rows: None if there is nothing to divide.
        form: What they look like; the same for calls that one traced step can serve.
    """

    def __init__(
        self,
        function: Any,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        rows: int | None = None,
        travel: Travel = Travel.ROWS,
    ):
        """Reads them.

        Args:
            function: The tf.function that is called.
            args: By position.
            kwargs: By name.
            rows: How many a worker is to be given, if the step is traced for that number alone.
            travel: Whether they are to be divided.
        """
        args = as_declared(function, args)
        structure = (tuple(args), kwargs)
        leaves: list[Any] = tf.nest.flatten(structure)
        self._values = [leaf for leaf in leaves if _is_data(leaf)]
        self._travel = travel
        self.num_rows = next((n for n in map(_first_dimension, self._values) if n is not None), None)
        specs = [_spec(v, self.num_rows, travel) for v in self._values]
        constants = [_DATA if _is_data(leaf) else leaf for leaf in leaves]
        self.form = Form(structure, constants, specs, rows)

    @property
    def too_large(self) -> bool:
        """Whether what would go to every worker is too much for it: it travels once a row."""
        if self._travel is not Travel.ROWS:
            return False
        whole = [v for v in self._values if _first_dimension(v) != self.num_rows]
        num_bytes = sum(_num_bytes(value) for value in whole)
        return num_bytes * (self.num_rows or 1) > _MAX_WHOLE_BYTES

    def encode(self) -> list[np.ndarray]:
        """Returns the arrays [rows, ...] that travel."""
        return self.form.encode(self._values, (self.num_rows or 1) if self._travel is Travel.ROWS else 1)


class Form:
    """What the arguments of a call look like; offers to a trace what `fdt.element.Element` does.

    Attributes:
        rows: How many a step is traced for; None for any number.
    """

    def __init__(self, structure: Any, constants: list[Any], specs: list[Any], num_rows: int | None):
        self._structure, self._constants, self._specs, self.rows = structure, constants, specs, num_rows
        divided = [spec for spec in specs if not isinstance(spec, _Whole)]
        self._element = _element(divided)
        self._whole = [spec for spec in specs if isinstance(spec, _Whole)]
        self._copied = _element([component for whole in self._whole for component in whole.components()])

    def with_rows(self, rows: int) -> "Form":
        """Returns the form for a step that is traced for so many rows."""
        return Form(self._structure, self._constants, self._specs, rows)

    def key(self) -> Any:
        """Returns what is equal for calls that one traced step can take."""
        return tuple(map(_identity, self._constants)), self._element.key(), repr(self._whole), self.rows

    def specs(self) -> list[tf.TensorSpec]:
        """Returns what the arrays look like, the number of rows left open."""
        # A step without any data still has a row, so that it is run once.
        return [*self._element.specs(), *self._copied.specs()] or [tf.TensorSpec([None], tf.int32)]

    def encode(self, values: Sequence[Any], num_rows: int) -> list[np.ndarray]:
        """Returns the arrays of the tensors among the arguments."""
        pairs = list(zip(self._specs, values, strict=True))
        arrays = self._element.encode([v for spec, v in pairs if not isinstance(spec, _Whole)])
        whole = [v for spec, v in pairs if isinstance(spec, _Whole)]
        components = tf.nest.flatten(whole, expand_composites=True)
        one_row = self._copied.encode([np.asarray(component)[None] for component in components])
        arrays += [np.ascontiguousarray(np.broadcast_to(a, (num_rows, *a.shape[1:]))) for a in one_row]
        return arrays or [np.zeros(num_rows, np.int32)]

    def decode(self, batch: Sequence[tf.Tensor]) -> Any:
        """Returns (args, kwargs) of some rows of the arrays."""
        count = len(self._element.specs())
        divided, whole = iter(self._element.decode(batch[:count])), iter(self._copied.decode(batch[count:]))
        values = self._decoded(divided, whole)
        leaves = [next(values) if constant is _DATA else constant for constant in self._constants]
        return tf.nest.pack_sequence_as(self._structure, leaves)

    def _decoded(self, divided: Iterator[Any], whole: Iterator[tf.Tensor]) -> Iterator[Any]:
        for spec in self._specs:
            if isinstance(spec, _Whole):
                yield spec.of([next(whole)[0] for _ in spec.components()])
                continue
            value = next(divided)
            if self.rows is not None and isinstance(spec, tf.TensorSpec):
                value = tf.ensure_shape(value, [self.rows, *spec.shape[1:]])
            yield value


# Stands among constants where data are.
_DATA = object()


class _Whole:
    """Marks the spec of a tensor that is the same for all rows."""

    def __init__(self, spec: tf.TypeSpec):
        self.spec = spec

    def components(self) -> list[tf.TensorSpec]:
        """Returns what the dense tensors that it is made of look like, as one row."""
        flat: list[tf.TensorSpec] = tf.nest.flatten(self.spec, expand_composites=True)
        return [tf.TensorSpec(tf.TensorShape([None]).concatenate(spec.shape), spec.dtype) for spec in flat]

    def of(self, components: list[tf.Tensor]) -> Any:
        """Returns the tensor that is made of these."""
        return tf.nest.pack_sequence_as(self.spec, components, expand_composites=True)

    def __repr__(self) -> str:
        return repr(self.spec)


def _element(specs: Sequence[Any]) -> Element:
    return Element(specs, list, lambda _, leaves: leaves)


def _is_data(leaf: Any) -> bool:
    if isinstance(leaf, tf.Variable):
        return False
    return isinstance(leaf, np.ndarray | np.generic | tf.Tensor | tf.RaggedTensor | tf.SparseTensor)


def _first_dimension(value: Any) -> int | None:
    shape = value.shape
    return int(shape[0]) if len(shape) else None


def _num_bytes(value: Any) -> int:
    components = tf.nest.flatten(value, expand_composites=True)
    return sum(np.asarray(component).nbytes for component in components)


def _spec(value: Any, num_rows: int | None, travel: Travel) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        dtype = tf.string if value.dtype.kind in "OSU" else tf.dtypes.as_dtype(value.dtype)
        spec = tf.TensorSpec(value.shape, dtype)
    else:
        spec = tf.type_spec_from_value(value)
    if travel is Travel.WHOLE:
        return _Whole(_open(spec))
    if travel is Travel.WHOLE_AS_THEY_ARE or _first_dimension(value) != num_rows or num_rows is None:
        return _Whole(spec)
    return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype) if isinstance(spec, tf.TensorSpec) else spec


def _open(spec: Any) -> Any:
    """Returns a spec for any number of rows; sparse tensors are of any size."""
    if isinstance(spec, tf.SparseTensorSpec):
        return tf.SparseTensorSpec([None] * spec.shape.rank, spec.dtype)
    if isinstance(spec, tf.TensorSpec) and spec.shape.rank:
        return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype)
    return spec


def as_declared(function: Any, args: Sequence[Any]) -> Sequence[Any]:
    """Returns positional arguments as a tf.function's signature, if it has one, converts them."""
    signature = function.input_signature
    return args if signature is None else [*map(_as_signature, args, signature), *args[len(signature) :]]


def _as_signature(value: Any, signature: Any) -> Any:
    """Converts what a signature declares to be a tensor, as the function itself would."""
    if not isinstance(signature, tf.TensorSpec) or isinstance(value, tf.Variable):
        return value
    return tf.convert_to_tensor(value, signature.dtype)


def _identity(constant: Any) -> Any:
    """Returns what tells a constant from another: an object by itself, a number by type and value."""
    if isinstance(constant, str | bytes | bool | int | float | type(None)):
        return type(constant), constant
    return id(constant)
