"""Admitted operations with hostile shapes, values and attributes, in processes that may die of them.

    python -m tests.helpers.hostile_inputs ROUND SECONDS [OP...]

Calls the operations in the order of ROUND, in a fork that is replaced when it dies, and prints a JSON object: how many calls
there were, and each that ended its process, as OP/NUMBER, with the signal and what TensorFlow said. These two alone decide
the inputs, so that `OP/NUMBER` in place of OP makes that call again.
"""

import contextlib
import dataclasses
import inspect
import itertools
import json
import os
import resource
import select
import signal
import sys
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import op_def_pb2
from tensorflow.python.client import pywrap_tf_session

from fdt.program.operations import FUNCTION, OPERATIONS

# More than this is no memory at all for an operation: it has to say so.
_MEMORY_BYTES = 12 << 30
# A call that takes longer is ended: hostile sizes are long loops, and no crash.
_CALL_S = 20.0
# What a check of TensorFlow or of the C++ library prints before it ends the process.
_TELLING = ("Check failed", "Non-OK-status", "terminate", "what()")
# They end or block what calls them by design, or say what runs and are no call by themselves.
_NO_CALL = {"Enter", "Exit", "LoopCond", "Merge", "NextIteration", "Switch", "Placeholder", "XlaDynamicUpdateSlice"}
_DIMENSIONS = [0, 1, 1, 2, 2, 3, 4, 5, 8]
_WIDE = 300_000
_INTEGERS = [0, 0, 1, 1, 2, 3, -1, -2, 5, 7, 100, -100, 2**31 - 1, -(2**31), 2**40, -(2**63), 2**63 - 1]
_FLOATS = [0.0, 1.0, -1.0, 0.5, 2.5, 1e-30, 1e38, -1e38, float("nan"), float("inf"), -float("inf"), 1e6]
_TEXTS = [b"", b"a", b"a b", b"\xff\xfe", b"%s{}", b"7" * 400, "日本".encode(), b"0.5"]
_TYPES = [
    tf.float32,
    tf.float32,
    tf.int32,
    tf.int64,
    tf.float64,
    tf.float16,
    tf.bool,
    tf.string,
    tf.complex64,
    tf.uint8,
    tf.bfloat16,
]
_OPTIONS = {
    "bad_indices_policy": ["", "DEFAULT", "ERROR", "IGNORE"], "padding": ["SAME", "VALID"],
    "unit": ["BYTE", "UTF8_CHAR"],
    "data_format": ["NHWC", "NCHW", "NDHWC", "NCDHW"],
    "equation": ["ij,jk->ik", "i,i->", "...ij->...ji", "ij->", "ii->i", "i"],
    "row_partition_types": [["ROW_SPLITS"], ["FIRST_DIM_SIZE", "VALUE_ROWIDS"],
        ["FIRST_DIM_SIZE", "VALUE_ROWIDS", "ROW_SPLITS"], []],
    "input_encoding": ["UTF-8", "UTF-16-BE"], "pattern": ["", "a", "(a|b)*", "["], "template": ["{}", "%s", ""],
    "input_order": ["RD", "DR", "R", "D"], "set_operation": ["a-b", "intersection", "union", ""],
}  # fmt: skip


def registry() -> dict[str, Any]:
    """Returns each operation's definition."""
    listed = op_def_pb2.OpList.FromString(pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList()))
    return {op.name: op for op in listed.op}


def callable_operations() -> list[str]:
    """Returns what can be called with values alone: those that call functions are not."""
    found = registry()
    plain = [op for op, rules in OPERATIONS.items() if FUNCTION not in rules.values() and op not in _NO_CALL]
    return sorted(op for op in plain if op in found and hasattr(tf.raw_ops, op))


class Call:
    """One call of an operation."""

    def __init__(self, definition: Any, number: int) -> None:
        self._definition = definition
        self._random = np.random.default_rng([zlib.crc32(definition.name.encode()), number])
        # With one shape for all, checks of the first inputs are passed more often.
        self._one_shape = self._shape() if self._random.random() < 0.6 else None
        # Indices that are in range get past the first checks, as well.
        self._is_tame = self._random.random() < 0.4
        self._attributes: dict[str, Any] = {}
        self._kept: list[Any] = []

    def make(self) -> None:
        """Calls it, eagerly or in a graph; any error of TensorFlow's goes on."""
        function = getattr(tf.raw_ops, self._definition.name)
        self._attributes = {attribute.name: self._attribute(attribute) for attribute in self._definition.attr}
        wanted = inspect.signature(function).parameters
        arguments = {argument.name: self._argument(argument) for argument in self._definition.input_arg}
        arguments |= {name: value for name, value in self._attributes.items() if name in wanted}
        if self._random.random() < 0.25:
            tf.function(lambda: function(**arguments), autograph=False)()
        else:
            function(**arguments)

    def _pick(self, choices: Any) -> Any:
        return choices[int(self._random.integers(len(choices)))]

    def _shape(self) -> list[int]:
        shape = [self._pick(_DIMENSIONS) for _ in range(int(self._random.integers(0, 6)))]
        # A wide row reaches past the pages of a narrow one, where reading and writing end the process.
        return [min(each, 2) for each in shape[:2]] + [_WIDE] if self._random.random() < 0.1 else shape

    def _attribute(self, attribute: Any) -> Any:
        """Returns a value for an attribute: its default more often than not."""
        many = attribute.type.startswith("list(")
        kind = attribute.type[5:-1] if many else attribute.type
        if attribute.HasField("default_value") and kind not in ("type", "int") and self._random.random() < 0.5:
            return _default(attribute)
        if attribute.HasField("default_value") and kind == "int" and self._random.random() < 0.3:
            return _default(attribute)
        if _OPTIONS.get(attribute.name):
            value = self._pick(_OPTIONS[attribute.name])
            return value if many == isinstance(value, list) else [value]
        least = attribute.minimum if attribute.has_minimum else 0
        if not many:
            return self._one(attribute, kind)
        number = max(int(least), int(self._pick([0, 1, 2, 3, 4, 4, 4, 5, 5, 6])))
        return [self._one(attribute, kind) for _ in range(number)]

    def _one(self, attribute: Any, kind: str) -> Any:
        allowed = attribute.allowed_values.list
        if kind == "type":
            choices = [tf.as_dtype(each) for each in allowed.type if tf.as_dtype(each) in _TYPES] or _TYPES
            return self._pick(choices)
        if kind == "string":
            return self._pick(list(allowed.s) or ["", "a", "{}"])
        if kind == "int":
            # How many inputs there are is no use if it is large.
            if any(attribute.name == argument.number_attr for argument in self._definition.input_arg):
                return int(max(attribute.minimum, self._random.integers(0, 4)))
            return int(self._pick([0, 1, 1, 2, 2, 3, 4, -1, 7, 2**31 - 1, -(2**31), 2**40]))
        if kind == "float":
            return float(self._pick(_FLOATS))
        if kind == "bool":
            return bool(self._random.integers(2))
        if kind == "shape":
            return tf.TensorShape(None if self._random.random() < 0.2 else self._shape())
        raise NotImplementedError(kind)

    def _argument(self, argument: Any) -> Any:
        if argument.type_list_attr:
            return [self._value(kind) for kind in self._attributes[argument.type_list_attr]]
        kind = self._attributes[argument.type_attr] if argument.type_attr else tf.as_dtype(argument.type)
        if argument.number_attr:
            return [self._value(kind) for _ in range(self._attributes[argument.number_attr])]
        return self._value(kind)

    def _value(self, kind: tf.DType) -> Any:
        if kind == tf.resource:
            return self._resource()
        if kind == tf.variant:
            return self._variant()
        shape = self._one_shape if self._one_shape is not None and self._random.random() < 0.7 else self._shape()
        size = int(np.prod(shape))
        if kind == tf.string:
            return tf.constant(np.array(_TEXTS, object)[self._random.integers(len(_TEXTS), size=size)].reshape(shape))
        if kind.is_integer:
            least, most = kind.limits
            choices = range(3) if self._is_tame else _INTEGERS
            numbers = np.array([min(max(each, least), most) for each in choices], kind.as_numpy_dtype)
            numbers = self._random.choice(numbers, size)
            if self._random.random() < 0.3:
                numbers.sort()
            return tf.constant(numbers.reshape(shape))
        if kind == tf.bool:
            return tf.constant(self._random.integers(2, size=shape).astype(bool))
        if self._is_tame or self._random.random() < 0.5:
            return tf.cast(tf.constant(self._random.normal(size=shape)), kind)
        return tf.cast(tf.constant(self._random.choice(_FLOATS, size).reshape(shape)), kind)

    def _type(self) -> tf.DType:
        """Returns the type that the operation says its handles' values have.

        Another one ends the process by a check of TensorFlow's own, before anything is touched.
        """
        named = ("dtype", "T", "elem_type", "element_dtype")
        types = [self._attributes[name] for name in named if isinstance(self._attributes.get(name), tf.DType)]
        return types[0] if types else self._pick(_TYPES)

    def _resource(self) -> Any:
        kind, name = self._type(), self._definition.name
        if "TensorArray" in name and self._random.random() < 0.9:
            handle, _ = tf.raw_ops.TensorArrayV3(size=3, dtype=kind, dynamic_size=self._is_tame)
            return handle
        if "Lookup" in name and self._random.random() < 0.9:
            kinds = [self._attributes[n] for n in ("Tin", "Tout", "Tkeys", "Tvalues") if n in self._attributes]
            keys, values = kinds or (tf.string, tf.int64)
            made = tf.raw_ops.MutableHashTableV2(key_dtype=keys, value_dtype=values)
        elif "Stack" in name and self._random.random() < 0.9:
            made = tf.raw_ops.StackV2(max_size=3, elem_type=kind)
        else:
            value = self._value(kind)
            if name.startswith(("Stateful", "Rng")) and self._random.random() < 0.7:
                value = tf.constant(self._random.integers(0, 9, size=self._pick([0, 1, 2, 3, 9])), tf.int64)
            made = tf.Variable(value, shape=tf.TensorShape(None)).handle if self._is_tame else tf.Variable(value).handle
        self._kept.append(made)
        return made

    def _variant(self) -> Any:
        kind = self._type()
        choice = self._random.integers(4)
        if "Ragged" in self._definition.name and choice < 3:
            values = tf.constant(self._random.normal(size=6), tf.float32)
            splits = tf.constant([0, 2, 6], tf.int64)
            return tf.raw_ops.RaggedTensorToVariant(
                rt_nested_splits=[splits], rt_dense_values=values, batched_input=bool(choice)
            )
        if "Optional" in self._definition.name and choice < 3:
            return tf.raw_ops.OptionalFromValue(components=[self._value(kind)]) if choice else tf.raw_ops.OptionalNone()
        if choice == 0:
            return tf.raw_ops.OptionalNone()
        if choice == 1 or kind == tf.string:
            return tf.raw_ops.EmptyTensorList(element_shape=-1, max_num_elements=-1, element_dtype=kind)
        rows = tf.cast(tf.constant(self._random.normal(size=(3, 2))), kind)
        return tf.raw_ops.TensorListFromTensor(tensor=rows, element_shape=self._pick([[2], [-1]]))


def _default(attribute: Any) -> Any:
    value = attribute.default_value
    which = value.WhichOneof("value")
    if which == "list":
        lists = [list(getattr(value.list, name)) for name in ("s", "i", "f", "b", "type")]
        return next((each for each in lists if each), [])
    if which == "type":
        return tf.as_dtype(value.type)
    return tf.TensorShape(value.shape) if which == "shape" else getattr(value, which)


@dataclasses.dataclass
class Round:
    """What came of many calls.

    Attributes:
        num_calls: How many were made.
        num_done: How many of them TensorFlow did not refuse.
        ended: The calls that ended their process: the signal, and the last line that said why.
    """

    num_calls: int = 0
    num_done: int = 0
    ended: dict[str, tuple[int, str]] = dataclasses.field(default_factory=dict)


def play(order: int, limit_s: float, names: list[str]) -> Round:
    """Makes calls until the time is over, or all that are named by number are made."""
    end_s, found = time.monotonic() + limit_s, Round()
    calls = iter(names) if any("/" in name for name in names) else _endless(order, names)
    pending = next(calls, None)
    while pending is not None and time.monotonic() < end_s:
        with tempfile.TemporaryFile() as said:
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(reader)
                os.dup2(said.fileno(), 2)
                _serve(writer, itertools.chain([pending], calls), end_s)
            os.close(writer)
            last, num_read = _follow(reader, child, found)
            _, status = os.waitpid(child, 0)
            if os.WIFSIGNALED(status):
                said.seek(0)
                found.ended[last] = os.WTERMSIG(status), _reason(said.read().decode(errors="replace"))
        if not num_read:
            break
        # The fork took them from its own copy of the iterator.
        for _ in range(num_read - 1):
            next(calls)
        pending = next(calls, None)
    return found


def _endless(order: int, names: list[str]) -> Iterator[str]:
    names = list(names)
    np.random.default_rng(order).shuffle(names)
    for number in itertools.count(order * 1_000_000):
        yield from (f"{name}/{number}" for name in names)


def _serve(writer: int, calls: Iterable[str], end_s: float) -> NoReturn:
    """Makes calls in this process, which they may end; names each before it."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    definitions = registry()
    for call in calls:
        if time.monotonic() > end_s:
            break
        os.write(writer, f"{call}\n".encode())
        op, _, number = call.partition("/")
        # What TensorFlow, or the Python in front of it, refuses is well.
        with contextlib.suppress(Exception):
            Call(definitions[op], int(number)).make()
            os.write(writer, b"done\n")
    os._exit(0)


def _follow(reader: int, child: int, found: Round) -> tuple[str, int]:
    """Counts the calls of a fork until it has ended; ends one that takes too long for a call."""
    last, num_read, rest = "", 0, b""
    waiting = select.poll()
    waiting.register(reader, select.POLLIN)
    while True:
        if not waiting.poll(1000 * _CALL_S):
            os.kill(child, signal.SIGKILL)
        chunk = os.read(reader, 1 << 16)
        if not chunk:
            os.close(reader)
            return last, num_read
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line == b"done":
                found.num_done += 1
            else:
                last, num_read, found.num_calls = line.decode(), num_read + 1, found.num_calls + 1


def _reason(said: str) -> str:
    telling = [line for line in said.splitlines() if any(word in line for word in _TELLING)]
    return telling[-1] if telling else ""


def main() -> None:
    names = sys.argv[3:] or callable_operations()
    print(json.dumps(dataclasses.asdict(play(int(sys.argv[1]), float(sys.argv[2]), names))))


if __name__ == "__main__":
    main()
