"""Messages as nobody would send them, for tests: random bytes, and messages of ours with a field bent."""

import struct
from typing import Any

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import strategies as st

from fdt.transport import wire

_NUMBERS = st.sampled_from([0, 1, 2, 7, 127, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**63 - 1, 2**63, 2**64 - 1])
_TEXTS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["job-1", "sync", "async", "../../etc/passwd", "\0", "\x1b[2J", "x" * 70_000, "{address}", "%s"]),
)
_BYTES = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([bytes(16), bytes(32), b"\xff" * 32, b"x" * 70_000, b"\xed\xa0\x80", b"\xc0\xaf", bytes(8) * 2]),
)
_MAX_DEPTH = 4


def raw(descriptor: Descriptor) -> st.SearchStrategy[bytes]:
    """Returns what a peer may send in the place of a message."""
    return st.one_of(st.binary(max_size=200), bent(descriptor), _cut(bent(descriptor)))


def _cut(whole: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """A message that ends early, or has a byte changed."""

    def bend(message: bytes, place: int, byte: int, cut: bool) -> bytes:
        place %= len(message) + 1
        return message[:place] if cut else message[:place] + bytes([byte]) + message[place + 1 :]

    return st.builds(bend, whole, st.integers(0, 2**16), st.integers(0, 255), st.booleans())


def bent(descriptor: Descriptor, depth: int = 0) -> st.SearchStrategy[bytes]:
    """Returns a message of a type as wire format, field by field, some of them twice, of another kind, or of no type."""
    fields = [_field(field, depth) for field in descriptor.fields]
    unknown = st.builds(_encoded, st.integers(1, 1000), st.just(2), _BYTES)
    return st.lists(st.one_of(*fields, unknown), max_size=5).map(b"".join)


def _field(field: FieldDescriptor, depth: int) -> st.SearchStrategy[bytes]:
    return st.one_of(_right(field, depth), _right(field, depth), _wrong(field))


def _right(field: FieldDescriptor, depth: int) -> st.SearchStrategy[bytes]:
    if field.message_type is not None:
        inner = st.just(b"") if depth >= _MAX_DEPTH else st.deferred(lambda: bent(field.message_type, depth + 1))
        return inner.map(lambda content: _encoded(field.number, 2, content))
    if field.type == FieldDescriptor.TYPE_STRING:
        return _TEXTS.map(lambda text: _encoded(field.number, 2, text.encode(errors="surrogatepass")))
    if field.type == FieldDescriptor.TYPE_BYTES:
        return _BYTES.map(lambda content: _encoded(field.number, 2, content))
    if field.type == FieldDescriptor.TYPE_DOUBLE:
        return st.floats().map(lambda number: _encoded(field.number, 1, number))
    return _NUMBERS.map(lambda number: _encoded(field.number, 0, number))


def _wrong(field: FieldDescriptor) -> st.SearchStrategy[bytes]:
    """The field's number with something that is not of its type: text that is no UTF-8, a number in a message's place."""
    return st.one_of(
        _BYTES.map(lambda content: _encoded(field.number, 2, content)),
        _NUMBERS.map(lambda number: _encoded(field.number, 0, number)),
    )


def _encoded(number: int, kind: int, content: Any) -> bytes:
    tag = wire.varint(number << 3 | kind)
    if kind == 0:
        return tag + wire.varint(content)
    if kind == 1:
        return tag + struct.pack("<d", content)
    return tag + wire.varint(len(content)) + content


def of(descriptor: Descriptor) -> type:
    """Returns the class of a message."""
    return message_factory.GetMessageClass(descriptor)
