"""Protobuf's wire format by hand, where a message object would cost a copy; and decoding that says what was wrong."""

from typing import TypeVar

from google.protobuf import message as protobuf

from fdt.errors import ProtocolError

T = TypeVar("T")


def decode(message: type[T], raw: bytes) -> T:
    """Parses a message.

    Raises:
        ProtocolError: The bytes are no such message.
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
