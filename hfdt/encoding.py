"""Encodes tensors of every numeric type as one of the few types that Horovod exchanges, and decodes them without loss.

Horovod's all-reduce takes five types and its all-gather seven. Other types are cast to a wider type that holds all their
values. If there is none, their bits are read as another type: unsigned sums wrap around as signed ones do, and a complex number
is two real numbers that add up separately.
"""

import tensorflow as tf

from fdt.program.layout import Combine

_REDUCED = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)
_GATHERED = (*_REDUCED, tf.uint8, tf.int8)
_FLOAT8 = [tf.dtypes.as_dtype(name) for name in ("float8_e4m3fn", "float8_e5m2")]
_INT4 = [tf.dtypes.as_dtype(name) for name in ("int4", "uint4")]
_CAST = {
    **dict.fromkeys([*_INT4, tf.int8, tf.uint8, tf.int16, tf.uint16], tf.int32),
    **dict.fromkeys(_FLOAT8, tf.float16),
    tf.bfloat16: tf.float32,
}
_BITS = {
    tf.uint32: tf.int32,
    tf.uint64: tf.int64,
    tf.complex64: tf.float32,
    tf.complex128: tf.float64,
    tf.qint8: tf.int8,
    tf.quint8: tf.uint8,
    tf.qint32: tf.int32,
}


def encode(tensor: tf.Tensor, combine: Combine | None = None) -> tf.Tensor:
    """Returns a tensor in a type that Horovod exchanges; a complex one gets a last dimension of two.

    Args:
        tensor: A tensor of numbers or booleans.
        combine: How the ranks' tensors are reduced; None if their rows are gathered.
    """
    dtype = tensor.dtype
    if dtype in (_GATHERED if combine is None else _REDUCED):
        return tensor
    if dtype == tf.bool:
        return tf.cast(tensor, tf.uint8 if combine is None else tf.int32)
    if dtype in _CAST:
        return tf.cast(tensor, _CAST[dtype])
    return _ordered(tf.bitcast(tensor, _BITS[dtype]), dtype, combine)


def decode(tensor: tf.Tensor, dtype: tf.DType, combine: Combine | None = None) -> tf.Tensor:
    """Inverts `encode` on an exchanged tensor.

    Args:
        tensor: The result of the exchange.
        dtype: The type of the tensor given to `encode`.
        combine: As given to `encode`.
    """
    if tensor.dtype == dtype:
        return tensor
    if dtype == tf.bool:
        return tensor > 0
    if dtype in _BITS:
        return tf.bitcast(_ordered(tensor, dtype, combine), dtype)
    return tf.cast(tensor, dtype)


def _ordered(bits: tf.Tensor, dtype: tf.DType, combine: Combine | None) -> tf.Tensor:
    """Flips the sign bit of unsigned integers, so that they have the same order when read as signed; its own inverse."""
    if dtype.is_unsigned and combine in (Combine.MAX, Combine.MIN):
        return tf.bitwise.bitwise_xor(bits, bits.dtype.min)
    return bits
