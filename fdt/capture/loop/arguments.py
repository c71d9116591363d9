"""The arguments of a step of the script's own: what is divided by rows, what goes to every worker, what is no data."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.element import Element
from fdt.errors import UnsupportedError

# Of what goes to every worker: it travels once a row.
_MAX_WHOLE_BYTES = 1 << 20


class Arguments:
    """The arguments of one call.

    The first tensor that has a dimension tells the number of rows; all that have as many are divided by rows. The
    others are the same for all rows.

    Attributes:
        num_rows: None if there is nothing to divide.
        form: What they look like; the same for calls that one traced step can serve.
    """

    def __init__(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any], rows: int | None = None):
        """Reads them.

        Args:
            function: The tf.function that is called.
            args: By position.
            kwargs: By name.
            rows: How many a worker is to be given, if the step is traced for that number alone.
        """
        args = as_declared(function, args)
        structure = (tuple(args), kwargs)
        leaves: list[Any] = tf.nest.flatten(structure)
        self._values = [leaf for leaf in leaves if _is_data(leaf)]
        self.num_rows = next((n for n in map(_first_dimension, self._values) if n is not None), None)
        specs = [_spec(v, self.num_rows) for v in self._values]
        constants = [_DATA if _is_data(leaf) else leaf for leaf in leaves]
        self.form = Form(structure, constants, specs, rows)

    def encode(self) -> list[np.ndarray]:
        """Returns the arrays [rows, ...] that travel."""
        return self.form.encode(self._values, self.num_rows or 1)


class Form:
    """What the arguments of a call look like; offers to a trace what `fdt.element.Element` does.

    Attributes:
        rows: How many a step is traced for; None for any number.
    """

    def __init__(self, structure: Any, constants: list[Any], specs: list[Any], num_rows: int | None):
        self._structure, self._constants, self._specs, self.rows = structure, constants, specs, num_rows
        divided = [spec for spec in specs if not isinstance(spec, _Whole)]
        self._element = Element(divided, list, lambda _, leaves: leaves)
        self._whole = [spec for spec in specs if isinstance(spec, _Whole)]

    def with_rows(self, rows: int) -> "Form":
        """Returns the form for a step that is traced for so many rows."""
        return Form(self._structure, self._constants, self._specs, rows)

    def key(self) -> Any:
        """Returns what is equal for calls that one traced step can take."""
        return tuple(map(_identity, self._constants)), self._element.key(), repr(self._whole), self.rows

    def specs(self) -> list[tf.TensorSpec]:
        """Returns what the arrays look like, the number of rows left open."""
        specs = [*self._element.specs(), *(tf.TensorSpec([None, *w.spec.shape], w.spec.dtype) for w in self._whole)]
        # A step without any data still has a row, so that it is run once.
        return specs or [tf.TensorSpec([None], tf.int32)]

    def encode(self, values: Sequence[Any], num_rows: int) -> list[np.ndarray]:
        """Returns the arrays of the tensors among the arguments."""
        pairs = list(zip(self._specs, values, strict=True))
        whole = [np.asarray(v) for spec, v in pairs if isinstance(spec, _Whole)]
        num_bytes = sum(w.nbytes for w in whole)
        if num_bytes * num_rows > _MAX_WHOLE_BYTES:
            raise UnsupportedError(
                f"The step is called with tensors of {num_bytes / 1e6:.1f} MB that have not one row for each of the "
                f"{num_rows} rows of the batch, so every worker would need them whole, in each step. Keep them in a "
                "tf.Variable, or compute them inside the step."
            )
        arrays = self._element.encode([v for spec, v in pairs if not isinstance(spec, _Whole)])
        arrays += [np.ascontiguousarray(np.broadcast_to(w, (num_rows, *w.shape))) for w in whole]
        return arrays or [np.zeros(num_rows, np.int32)]

    def decode(self, batch: Sequence[tf.Tensor]) -> Any:
        """Returns (args, kwargs) of some rows of the arrays."""
        count = len(self._element.specs())
        divided, whole = iter(self._element.decode(batch[:count])), iter(batch[count:])
        values = self._decoded(divided, whole)
        leaves = [next(values) if constant is _DATA else constant for constant in self._constants]
        return tf.nest.pack_sequence_as(self._structure, leaves)

    def _decoded(self, divided: Iterator[Any], whole: Iterator[tf.Tensor]) -> Iterator[Any]:
        for spec in self._specs:
            if isinstance(spec, _Whole):
                yield next(whole)[0]
                continue
            value = next(divided)
            if self.rows is not None and isinstance(spec, tf.TensorSpec):
                value = tf.ensure_shape(value, [self.rows, *spec.shape[1:]])
            yield value


# Stands among constants where data are.
_DATA = object()


class _Whole:
    """Marks the spec of a tensor that is the same for all rows."""

    def __init__(self, spec: tf.TensorSpec):
        self.spec = spec

    def __repr__(self) -> str:
        return repr(self.spec)


def _is_data(leaf: Any) -> bool:
    if isinstance(leaf, tf.Variable):
        return False
    return isinstance(leaf, np.ndarray | np.generic | tf.Tensor | tf.RaggedTensor | tf.SparseTensor)


def _first_dimension(value: Any) -> int | None:
    shape = value.shape
    return int(shape[0]) if len(shape) else None


def _spec(value: Any, num_rows: int | None) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        dtype = tf.string if value.dtype.kind in "OSU" else tf.dtypes.as_dtype(value.dtype)
        spec = tf.TensorSpec(value.shape, dtype)
    else:
        spec = tf.type_spec_from_value(value)
    if _first_dimension(value) != num_rows or num_rows is None:
        return _Whole(spec)
    return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype) if isinstance(spec, tf.TensorSpec) else spec


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
