"""Reads a serialised graph as nodes and edges: dependencies, writes, and a part of the graph by itself."""

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from typing import Any

from tensorflow.core.framework import graph_pb2, node_def_pb2, types_pb2
from tensorflow.python.framework import op_def_registry

# Operations that take a variable and leave it as it is.
_READERS = {"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "VarIsInitializedOp"}
# Operations that pass their inputs on, one by one.
PASSING = {"Identity", "IdentityN", "StopGradient", "PreventGradient", "Snapshot"}
_NOTHING_HAPPENS = {"Placeholder", "Const"}
# For operations that call functions: how many inputs come before the function's own.
_CALLS = {
    "PartitionedCall": 0,
    "StatefulPartitionedCall": 0,
    "While": 0,
    "StatelessWhile": 0,
    "If": 1,
    "StatelessIf": 1,
    "Case": 1,
    "StatelessCase": 1,
}

# A tensor: its node's name and its place among the node's outputs.
Tensor = tuple[str, int]


def tensor(text: str) -> Tensor:
    """Reads a data edge, "node" or "node:1"."""
    name, _, index = text.partition(":")
    return name, int(index or 0)


def text_of(edge: Tensor) -> str:
    """Writes a data edge in the form of a node's input."""
    return f"{edge[0]}:{edge[1]}" if edge[1] else edge[0]


def data_inputs(node: Any) -> list[Tensor]:
    """Returns the tensors that a node computes with."""
    return [tensor(text) for text in node.input if not text.startswith("^")]


def placeholder(name: str, dtype: int) -> Any:
    """Makes a placeholder node of any shape.

    Args:
        name: The node's name.
        dtype: Its type's number in types.proto.
    """
    node = node_def_pb2.NodeDef(name=name, op="Placeholder")
    node.attr["dtype"].type = dtype
    node.attr["shape"].shape.unknown_rank = True
    return node


def control_inputs(node: Any) -> list[str]:
    """Returns the names of the nodes that a node waits for."""
    return [text[1:] for text in node.input if text.startswith("^")]


def _reached(starts: Iterable[str], stop: Collection[str], onward: Callable[[str], Iterable[str]]) -> set[str]:
    """Returns the nodes that are reached from some nodes, themselves included; from those in `stop` it goes no further."""
    found: set[str] = set()
    waiting = list(starts)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            if name not in stop:
                waiting += onward(name)
    return found


class Graph:
    """A GraphDef with queries for edges, writes and parts.

    Attributes:
        nodes: All nodes by name, in the GraphDef's order.
    """

    def __init__(self, graph_def: Any):
        self.graph_def = graph_def
        self.nodes = {node.name: node for node in graph_def.node}
        self._functions = {function.signature.name: function for function in graph_def.library.function}
        self._writes: dict[str, frozenset[int]] = {}

    def source(self, edge: Tensor) -> Tensor:
        """Returns the origin of a tensor, past operations that only pass it on."""
        node = self.nodes[edge[0]]
        while node.op in PASSING:
            edge = data_inputs(node)[edge[1]]
            node = self.nodes[edge[0]]
        return edge

    def value(self, edge: Tensor) -> Tensor:
        """Like `source`, but not past an operation that waits for others before it passes its input on."""
        node = self.nodes[edge[0]]
        while node.op in PASSING and not control_inputs(node):
            edge = data_inputs(node)[edge[1]]
            node = self.nodes[edge[0]]
        return edge

    def ancestors(self, starts: Iterable[str], stop: Collection[str] = ()) -> set[str]:
        """Returns the nodes that some nodes depend on by data, themselves included; stops at `stop`."""
        return _reached(starts, stop, self._inputs)

    def waited_for(self, starts: Iterable[str], stop: Collection[str] = ()) -> set[str]:
        """Returns the nodes that run before some nodes do, by data or control edges, themselves included; stops at `stop`."""
        return _reached(starts, stop, lambda name: [*self._inputs(name), *control_inputs(self.nodes[name])])

    def descendants(self, starts: Collection[str], stop: Collection[str] = ()) -> set[str]:
        """Returns the nodes that depend on some nodes by data, themselves included; stops at `stop`."""
        return _reached(starts, stop, lambda name: self._users.get(name, []))

    @cached_property
    def _users(self) -> Mapping[str, Sequence[str]]:
        users: dict[str, list[str]] = {}
        for name, inputs in self._before.items():
            for before in inputs:
                users.setdefault(before, []).append(name)
        return users

    @cached_property
    def _places(self) -> Mapping[str, int]:
        return {name: place for place, name in enumerate(self.nodes)}

    @cached_property
    def _before(self) -> Mapping[str, Sequence[str]]:
        return {name: [edge[0] for edge in data_inputs(node)] for name, node in self.nodes.items()}

    def _inputs(self, name: str) -> Sequence[str]:
        return self._before[name]

    def writes(self, node: Any) -> list[Tensor]:
        """Returns the handles of the variables that a node may write."""
        edges = data_inputs(node)
        return [self.source(edges[i]) for i in sorted(self._written_inputs(node)) if i < len(edges)]

    def has_effect(self, node: Any) -> bool:
        """Whether a node has a side effect other than writing a variable: it prints, asserts, or writes other state."""
        return node.op not in _READERS and node.op not in _CALLS and _is_stateful(node.op)

    def _written_inputs(self, node: Any) -> frozenset[int]:
        """Returns which of a node's data inputs it writes, if they are variables."""
        if node.op in _CALLS:
            offset = _CALLS[node.op]
            return frozenset(i + offset for f in _called(node) for i in self._written_arguments(f))
        if node.op in _READERS or node.op in PASSING or not _is_stateful(node.op):
            return frozenset()
        types = _types(node, op_def_registry.get(node.op).input_arg)
        return frozenset(i for i, number in enumerate(types) if number == types_pb2.DT_RESOURCE)

    def _written_arguments(self, name: str) -> frozenset[int]:
        if name not in self._writes:
            self._writes[name] = frozenset()  # a function that calls itself adds nothing
            function = self._functions[name]
            arguments = {argument.name: i for i, argument in enumerate(function.signature.input_arg)}
            aliases = dict(arguments)
            written: set[int] = set()
            # In a function's body nodes come in an order in which inputs precede their users.
            for node in function.node_def:
                sources = [text.split(":")[0] for text in node.input if not text.startswith("^")]
                if node.op == "Identity" and sources[0] in aliases:
                    aliases[node.name] = aliases[sources[0]]
                touched = self._written_inputs(node)
                written |= {aliases[s] for i, s in enumerate(sources) if i in touched and s in aliases}
            self._writes[name] = frozenset(written)
        return self._writes[name]

    def dtype(self, edge: Tensor) -> int:
        """Returns the number of a tensor's type in types.proto."""
        node = self.nodes[edge[0]]
        return list(_types(node, op_def_registry.get(node.op).output_arg))[edge[1]]

    def part(self, keep: Collection[str], redirect: Mapping[Tensor, Tensor] | None = None) -> Any:
        """Returns a GraphDef of some of the nodes.

        Args:
            keep: Names of nodes. Their data inputs have to be kept too, or redirected.
            redirect: From a tensor to its replacement.

        A kept node still waits for the kept nodes that it waited for through dropped ones, placeholders and constants excepted.
        """
        redirect = redirect or {}
        result = graph_pb2.GraphDef(versions=self.graph_def.versions, library=self.graph_def.library)
        behind = self._kept_behind(frozenset(keep))
        for name in sorted(keep, key=self._places.__getitem__):
            node = self.nodes[name]
            copy = result.node.add()
            copy.CopyFrom(node)
            # The part's inputs may have other shapes (a vector instead of a matrix), so these are inferred again.
            copy.attr.pop("_output_shapes", None)
            # A gradient may be colocated with an operation of the other part.
            copy.attr.pop("_class", None)
            del copy.input[:]
            copy.input.extend(text_of(redirect.get(edge, edge)) for edge in data_inputs(node))
            waits = {w for control in control_inputs(node) for w in behind(control)} - {name}
            waits = {w for w in waits if self.nodes[w].op not in _NOTHING_HAPPENS}
            copy.input.extend(f"^{wait}" for wait in sorted(waits))
        return result

    def _kept_behind(self, keep: frozenset[str]) -> Callable[[str], frozenset[str]]:
        """Returns a function from a node to itself if it is kept, else to the nearest kept nodes that it depends on."""
        known: dict[str, frozenset[str]] = {}

        def behind(name: str) -> frozenset[str]:
            # Without recursion: graphs are deep.
            waiting = [name]
            while waiting:
                top = waiting[-1]
                if top in keep:
                    known[top] = frozenset([top])
                if top in known:
                    waiting.pop()
                    continue
                node = self.nodes[top]
                before = [edge[0] for edge in data_inputs(node)] + control_inputs(node)
                unknown = [b for b in before if b not in known]
                if unknown:
                    waiting += unknown
                else:
                    known[top] = frozenset(itertools.chain.from_iterable(known[b] for b in before))
            return known[name]

        return behind


@cache
def _is_stateful(op: str) -> bool:
    definition = op_def_registry.get(op)
    return definition is not None and bool(definition.is_stateful)


def _types(node: Any, arguments: Iterable[Any]) -> Iterator[int]:
    """Yields the type of each input or output of a node, from the description of its operation."""
    for argument in arguments:
        if argument.type_list_attr:
            yield from _attribute(node, argument.type_list_attr).list.type
        else:
            one = argument.type if argument.type else _attribute(node, argument.type_attr).type
            yield from [one] * (_attribute(node, argument.number_attr).i if argument.number_attr else 1)


def _attribute(node: Any, name: str) -> Any:
    """Returns an attribute, by default the operation's default. (Indexing a protobuf map would add a missing key.)"""
    if name in node.attr:
        return node.attr[name]
    return next(a.default_value for a in op_def_registry.get(node.op).attr if a.name == name)


def _called(node: Any) -> list[str]:
    """Returns the names of the functions that a node calls with its inputs."""
    names = []
    for attribute in node.attr.values():
        kind = attribute.WhichOneof("value")
        if kind == "func":
            names.append(attribute.func.name)
        elif kind == "list":
            names += [function.name for function in attribute.list.func]
    return names
