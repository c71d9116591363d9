"""Encodes tensors of every numeric type as one of the few types that Horovod exchanges, and decodes them without loss.

Horovod's all-reduce takes five types and its all-gather seven. Other types are cast to a wider one that holds all their values,
or, where there is none, their bits are read as another type: a sum of unsigned integers wraps around like that of signed ones,
and a complex number is two real ones, which add up by themselves.
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
    """Returns a tensor as Horovod exchanges it; that of a complex one has a dimension more, its last.

    Args:
        tensor: Of numbers or booleans.
        combine: What the workers' tensors are put together by; None if their rows are gathered.
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
    """Returns what `encode` was given, of what it returned.

    Args:
        tensor: As it was exchanged.
        dtype: Of the tensor that was encoded.
        combine: As it was encoded for.
    """
    if tensor.dtype == dtype:
        return tensor
    if dtype == tf.bool:
        return tensor > 0
    if dtype in _BITS:
        return tf.bitcast(_ordered(tensor, dtype, combine), dtype)
    return tf.cast(tensor, dtype)


def _ordered(bits: tf.Tensor, dtype: tf.DType, combine: Combine | None) -> tf.Tensor:
    """Returns the bits of unsigned integers so that, read as signed ones, they have the same order; undoes it, too."""
    if dtype.is_unsigned and combine in (Combine.MAX, Combine.MIN):
        return tf.bitwise.bitwise_xor(bits, bits.dtype.min)
    return bits
