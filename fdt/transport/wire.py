"""Reads and writes protobuf's wire format by hand, where a message object would cost a copy; decodes with clear errors."""

from collections.abc import Iterator, Mapping
from typing import TypeVar

from google.protobuf import message as protobuf

from fdt.errors import ProtocolError

T = TypeVar("T")

# The size of a number, by its fixed-size wire type.
_FIXED_BYTES = {1: 8, 5: 4}


def decode(message: type[T], raw: bytes) -> T:
    """Parses a message.

    Raises:
        ProtocolError: The bytes are not such a message.
    """
    try:
        return message.FromString(raw)  # type: ignore[attr-defined, no-any-return]
    except protobuf.DecodeError as error:
        raise ProtocolError(f"Malformed message: expected {message.__name__}, {len(raw)} bytes.") from error


def varint(value: int) -> bytes:
    """Returns protobuf's variable-length form of a non-negative integer."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def only_field(raw: bytes, field: int) -> memoryview | None:
    """Returns the bytes of a message's length-delimited field if it is the only one, else None. Copies nothing."""
    if not raw or raw[0] != field << 3 | 2:
        return None
    length = shift = 0
    for position in range(1, min(len(raw), 11)):
        length |= (raw[position] & 0x7F) << shift
        shift += 7
        if not raw[position] & 0x80:
            start = position + 1
            return memoryview(raw)[start:] if start + length == len(raw) else None
    return None


def fields(raw: bytes) -> Iterator[tuple[int, bytes | None]]:
    """Yields a message's fields: each one's number, and its bytes if it is length-delimited, else None.

    Raises:
        ValueError: The bytes are no message.
    """
    position = 0
    while position < len(raw):
        tag, position = _read_varint(raw, position)
        kind = tag & 7
        size = 0
        if kind == 0:
            _, position = _read_varint(raw, position)
        elif kind in _FIXED_BYTES:
            size = _FIXED_BYTES[kind]
        elif kind == 2:
            size, position = _read_varint(raw, position)
        else:
            raise ValueError(f"unknown wire type {kind}")
        if position + size > len(raw):
            raise ValueError("cut short")
        yield tag >> 3, raw[position : position + size] if kind == 2 else None
        position += size


def _read_varint(raw: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position == len(raw):
            raise ValueError("cut short")
        byte = raw[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("a number too long")


# What a field may contain, for `has_shape`: a number, anything, a message of numbers, or a message with the given fields.
NUMBER, ANYTHING, NUMBERS = "number", "anything", "numbers"
Shape = Mapping[int, "str | Shape"]


def has_shape(raw: bytes, shape: Shape) -> bool:
    """Returns whether the bytes are a message with only the fields of `shape`, each with the content that `shape` allows."""
    try:
        return all(_fits(content, shape.get(field)) for field, content in fields(raw))
    except ValueError:
        return False


def _fits(content: bytes | None, shape: "str | Shape | None") -> bool:
    if content is None:
        return shape in (NUMBER, ANYTHING)
    if shape == NUMBERS:
        return all(inner is None for _, inner in fields(content))
    return shape == ANYTHING or (isinstance(shape, Mapping) and has_shape(content, shape))
