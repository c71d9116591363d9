"""What a program may do in a pool: every operation of its graph and of its function library is looked at.

A program is data from elsewhere. It may compute; it may not run Python, touch files, talk to the network, or bring in
further graphs that nobody has looked at. What `fdt.program.operations` does not list is refused, unless the pool's operator
has admitted it by name (`--admit`).

Resources and variants are handles of objects in the worker's memory. TensorFlow trusts what is in them, so none may be made of
a program's bytes: a type attribute may name a handle's type only where `HANDLES` lists it. `--admit` adds none to these.

TensorFlow fills in attributes when it runs a function: from the call, from the call of the caller, from defaults in the
function's signature. `tf.function` makes no such functions, so a program that holds one is refused, and every attribute is
what it says.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from fdt.errors import ProgramRefusedError
from fdt.program.operations import (
    ANNOTATIONS,
    ATTRIBUTES,
    CALL,
    DEVICE,
    FUNCTION,
    FUNCTION_ATTRIBUTES,
    HANDLES,
    OPERATIONS,
    REASONS,
    Rule,
)
from fdt.transport import wire
from fdt.v1 import graph_pb2, program_pb2

# Clients put at most 256 MiB of constants into a program; a graph without them is some MB.
MAX_BYTES = 384 << 20
# Nodes of a graph and of its functions. A step of a hundred layers, with its gradients and updates, has some 10,000.
MAX_NODES = 1_000_000
# A function for each branch, loop body and call of a `tf.function`: seldom more than some hundreds.
MAX_FUNCTIONS = 20_000
# TensorFlow puts the body of a function in the place of its call: few functions that call each other twice become many nodes.
MAX_INLINED_NODES = 4_000_000
# Calls within calls. Python itself, which traced them, comes to an end at some hundreds.
MAX_CALL_DEPTH = 100
# A function in an attribute has attributes itself. TensorFlow 1 writes one within another, for a gradient.
MAX_NESTED_FUNCTIONS = 4
# Of a name or value in a message.
_SHOWN = 120
# TensorFlow's DataTypes of handles: what they refer to is not in the program. References to them count from 100 on.
_HANDLE_TYPES = {20: "resource", 21: "variant", 120: "resource", 121: "variant"}

_Attributes = Mapping[str, graph_pb2.AttrValue]


# What all of TensorFlow's operations are called like, and no function that it traces (`__inference_step_7`, `cond_true_3`).
_OPERATION = re.compile(r"_*[A-Z][A-Za-z0-9>]*")


def is_like_an_operation(name: str) -> bool:
    """Whether a name could be that of one of TensorFlow's operations."""
    return _OPERATION.fullmatch(name) is not None


def check_admissible(op: str) -> None:
    """Checks the name of an additional operation that an operator wants to admit.

    Raises:
        ValueError: It is none, or what it does is not for a program.
    """
    if not is_like_an_operation(op):
        raise ValueError("expected the name of a TensorFlow operation, such as DecodeJpeg")
    if op in REASONS:
        raise ValueError(f"no pool runs it: {REASONS[op]}")


def examine(raw: bytes, more: Collection[str] = ()) -> None:
    """Looks at the whole of a program as it came.

    Args:
        raw: A `StepProgram`.
        more: Operations that the operator admits besides those of the list.

    Raises:
        ProgramRefusedError: An operation or attribute, named, is not admitted; or the program is too large.
        ProtocolError: It cannot be read.
    """
    _check("bytes", len(raw), MAX_BYTES)
    admit(wire.decode(program_pb2.StepProgram, raw), more)


def admit(program: program_pb2.StepProgram, more: Collection[str] = ()) -> None:
    """Looks at the whole of a program; see `examine`.

    Raises:
        ProgramRefusedError: An operation or attribute, named, is not admitted; or the program is too large.
        ProtocolError: The graph cannot be read.
    """
    admit_graph(wire.decode(graph_pb2.MetaGraphDef, program.step.meta_graph).graph_def, more)


def admit_graph(graph: graph_pb2.GraphDef, more: Collection[str] = ()) -> None:
    """Looks at every node of a graph and of its function library; see `examine`.

    Raises:
        ProgramRefusedError: An operation or attribute, named, is not admitted; or the graph is too large.
    """
    _check("functions", len(graph.library.function), MAX_FUNCTIONS)
    sizes = {"": len(graph.node)} | {f.signature.name: len(f.node_def) for f in graph.library.function}
    _check("nodes", len(graph.node) + sum(len(f.node_def) for f in graph.library.function), MAX_NODES)
    library = _library(graph)
    # Of an attribute it is the name that tells what it may hold.
    operations = {**OPERATIONS, **dict.fromkeys(set(more) - OPERATIONS.keys(), ATTRIBUTES)}
    calls = {"": _Body("the graph", library, operations).admit(graph.node)}
    for function in graph.library.function:
        body = _Body(f"function {_shown(function.signature.name)}", library, operations)
        body.admit_signature(function)
        calls[function.signature.name] = body.admit(function.node_def)
    for gradient in graph.library.gradient:
        _Body("the list of gradients", library).call(gradient.function_name, gradient.gradient_func)
    for registered in graph.library.registered_gradients:
        _Body("the list of gradients", library).call(registered.gradient_func)
    _Calls(sizes, calls).check()


def _library(graph: graph_pb2.GraphDef) -> frozenset[str]:
    """Returns the names of a graph's functions, each of which means one thing."""
    names = [function.signature.name for function in graph.library.function]
    seen: set[str] = set()
    for name in names:
        reason = None
        if not name:
            reason = "has no name"
        elif is_like_an_operation(name):
            reason = "is called like one of TensorFlow's operations"
        elif name in seen:
            reason = "is there twice"
        if reason is not None:
            raise ProgramRefusedError(
                f"A function of the program's library {reason}, so that a call of it could mean something else. Give it "
                f"a name of its own. Received: {_shown(name)}"
            )
        seen.add(name)
    return frozenset(seen)


class _Body:
    """The nodes of a graph or of a function."""

    def __init__(
        self, place: str, library: frozenset[str], operations: Mapping[str, Mapping[str, Rule]] = OPERATIONS
    ) -> None:
        self._place, self._library, self._operations = place, library, operations
        # The one that is looked at; None for what stands beside all nodes.
        self._node: graph_pb2.NodeDef | None = None
        self._devices: set[str] = {""}
        self._calls: list[str] = []

    def admit(self, nodes: Iterable[graph_pb2.NodeDef]) -> list[str]:
        """Looks at each node; returns the functions that they call."""
        for node in nodes:
            self._node = node
            rules = self._operations.get(node.op)
            self._admit_attributes(node.attr, self._rules_of_call(node.op) if rules is None else rules)
            if node.device not in self._devices:
                self._admit_device(node.device)
        return self._calls

    def admit_signature(self, function: graph_pb2.FunctionDef) -> None:
        """Looks at what stands beside the nodes of a function."""
        if function.signature.attr:
            raise ProgramRefusedError(
                f"In {self._place} attributes are left open, to be filled in when it is called, so that nobody can tell what "
                f"it does. Export the program with functions that `tf.function` traced. "
                f"Received: {_shown(function.signature.attr[0].name)}"
            )
        self._admit_attributes(function.attr, FUNCTION_ATTRIBUTES)
        for argument in function.arg_attr.values():
            self._admit_attributes(argument.attr, ANNOTATIONS)

    def call(self, *functions: str) -> None:
        """Notes that functions are called.

        Raises:
            ProgramRefusedError: One of them is not in the library.
        """
        for function in functions:
            if function not in self._library:
                raise ProgramRefusedError(
                    f"The pool does not run {self._who()}: it calls {_shown(function)}, which is not in the program's function "
                    f"library, so nobody can tell what it does. Export the program whole."
                )
            self._calls.append(function)

    def _rules_of_call(self, op: str) -> Mapping[str, Rule]:
        """Returns the rules of an operation that is a function of the library: it has no attributes of its own."""
        if op not in self._library:
            reason = REASONS.get(op, "it is none of those that training steps are known to have")
            may_be_admitted = op not in REASONS and len(op) < _SHOWN and is_like_an_operation(op)
            remedy = (
                f", or have it admitted where the pool is started, if its clients are trusted: --admit {op}"
                if may_be_admitted
                else ""
            )
            raise ProgramRefusedError(
                f"The pool does not run {self._who()}: {reason}. Take it out of the training step (what must be read or "
                f"written belongs before `fit` or in a callback){remedy}."
            )
        self._calls.append(op)
        return {}

    def _admit_device(self, device: str) -> None:
        if DEVICE.text is None or not DEVICE.text(device.encode()):
            raise ProgramRefusedError(
                f"The pool does not admit the device of {self._who()}: it may be {DEVICE.says}. Leave it to the pool where "
                f"operations run. Received: device={_shown(device)}"
            )
        self._devices.add(device)

    def _admit_attributes(self, attributes: _Attributes, rules: Mapping[str, Rule], within: str = "") -> None:
        for name, value in attributes.items():
            # The message that is read here has no fields for numbers and shapes.
            content = value.ListFields()
            # Most attributes are the type of a number.
            if len(content) == 1 and value.type and value.type not in _HANDLE_TYPES and name[:1] != "_":
                continue
            if content or name[:1] == "_":
                rule = ANNOTATIONS.get(name) if name[:1] == "_" else rules.get(name)
                self._admit_attribute(within + name, rule, content)

    def _admit_attribute(self, name: str, rule: Rule | None, content: Iterable[tuple[Any, Any]]) -> None:
        """Checks the fields of an attribute, and their contents; numbers and shapes need no check."""
        if rule is None and name[:1] == "_":
            self._refuse(name, "the pool does not know it. Export the program without it.")
        for field, value in content:
            if field.name != "list":
                self._admit_value(name, rule, field.name, value)
                continue
            for inner, values in value.ListFields():
                for each in values:
                    self._admit_value(name, rule, inner.name, each)

    def _admit_value(self, name: str, rule: Rule | None, kind: str, value: Any) -> None:
        if kind == "placeholder":
            self._refuse(
                name,
                f"it is left open, to be filled in from {_shown(value)} when the function is called. Export the program with "
                f"functions that `tf.function` traced.",
            )
        elif kind == "s" and value and (rule is None or rule.text is None or not rule.text(value)):
            self._refuse_value(name, rule, _shown(value))
        elif kind == "func":
            if rule is not FUNCTION:
                self._refuse_value(name, rule, f"the function {_shown(value.name)}")
            self.call(value.name)
            _check("functions in attributes of each other", name.count(".") + 1, MAX_NESTED_FUNCTIONS)
            self._admit_attributes(value.attr, CALL, within=f"{name}.")
        elif kind == "type":
            self._admit_type(name, value)
        elif kind == "tensor" and (rule is None or not rule.tensor or value.dtype in _HANDLE_TYPES):
            self._refuse_value(name, rule, f"a tensor of type {_HANDLE_TYPES.get(value.dtype, value.dtype)}")

    def _admit_type(self, name: str, number: int) -> None:
        kind = _HANDLE_TYPES.get(number)
        # Annotations, and what is said of a function beside its name, give no value its type.
        if kind is None or name[:1] == "_" or "." in name or self._node is None:
            return
        if f"{self._node.op}.{name}" in HANDLES[kind]:
            return
        self._refuse(
            name,
            f"it may not be the type {kind}, a handle of what is in the worker's memory. Take the operation out of the "
            f"training step.",
        )

    def _refuse_value(self, name: str, rule: Rule | None, received: str) -> None:
        says = rule.says if rule is not None else "numbers, types and shapes only"
        self._refuse(name, f"it may hold {says}. Leave it at its default. Received: {received}")

    def _refuse(self, name: str, why: str) -> None:
        raise ProgramRefusedError(f"The pool does not admit the attribute {_shown(name)} of {self._who()}: {why}")

    def _who(self) -> str:
        if self._node is None:
            return self._place
        return f"the operation {_shown(self._node.op)} (node {_shown(self._node.name)} in {self._place})"


class _Calls:
    """Which functions call which."""

    def __init__(self, sizes: Mapping[str, int], calls: Mapping[str, list[str]]) -> None:
        self._sizes, self._calls = sizes, calls
        # Number of nodes with those of all that is called, and how deep that goes.
        self._known: dict[str, tuple[int, int]] = {}

    def check(self) -> None:
        """Refuses a library that becomes too large when it runs."""
        for function in self._calls:
            self._look(function, [])

    def _look(self, function: str, path: list[str]) -> tuple[int, int]:
        known = self._known.get(function)
        if known is not None:
            return known
        if function in path:
            raise ProgramRefusedError(
                f"Function {_shown(function)} calls itself, so that it might never end. Export the program with functions "
                f"that `tf.function` traced; loops are `tf.while_loop`s."
            )
        path.append(function)
        _check("calls within each other", len(path), MAX_CALL_DEPTH)
        nodes, depth = self._sizes[function], 0
        for called in self._calls[function]:
            more, below = self._look(called, path)
            nodes, depth = nodes + more, max(depth, below)
        path.pop()
        _check("nodes, those of called functions counted at each call", nodes, MAX_INLINED_NODES)
        _check("calls within each other", depth + 1, MAX_CALL_DEPTH)
        self._known[function] = nodes, depth + 1
        return nodes, depth + 1


def _check(what: str, received: int, limit: int) -> None:
    if received > limit:
        raise ProgramRefusedError(
            f"The program is too large: {received:,} {what}, and the pool admits {limit:,}. Hand large tensors over as data "
            f"or as variables, and write loops of many steps as `tf.while_loop`s."
        )


def _shown(text: str | bytes) -> str:
    """Returns a name or value as a message shows it: readable, and not longer than a line."""
    shown = repr(text[:_SHOWN])
    return shown if len(text) <= _SHOWN else f"{shown}..."
