"""Writes what an update does to each entry of a vector as C++; equal updates give equal texts."""

import dataclasses
import functools
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from fdt.base.native import optional
from fdt.program.node_graph import Graph, Tensor, data_inputs, tensor

# Compiled, or found, before a worker's sandbox is closed.
_NATIVE = optional("fdt.program.update")
# The operations of Keras's optimizers, applied to one entry. NaN stays NaN, as in TensorFlow's operations.
_TEXTS = {
    "Abs": "std::abs({0})",
    "Add": "{0} + {1}",
    "AddV2": "{0} + {1}",
    "Div": "{0} / {1}",
    "Maximum": "{0} > {1} || {0} != {0} ? {0} : {1}",
    "Minimum": "{0} < {1} || {0} != {0} ? {0} : {1}",
    "Mul": "{0} * {1}",
    "Neg": "-{0}",
    "RealDiv": "{0} / {1}",
    "Reciprocal": "1 / {0}",
    "Rsqrt": "1 / std::sqrt({0})",
    "Sign": "T({0} > 0) - T({0} < 0)",
    "Sqrt": "std::sqrt({0})",
    "Square": "{0} * {0}",
    "SquaredDifference": "({0} - {1}) * ({0} - {1})",
    "Sub": "{0} - {1}",
}

# TensorFlow computes these by other instructions, so that the last bit may differ; a division by a root is one of them, since
# TensorFlow first rewrites it.
_INEXACT = ("Rsqrt", "Reciprocal")
_DIVISIONS = ("Div", "RealDiv")
_GRADIENTS = ("g", "h")
# A formula in the compiled header.
_KNOWN = re.compile(r"^FDT_FORMULA\((\w+),\n(.*?)\)$", re.DOTALL | re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Formula:
    """The update of one entry.

    Attributes:
        text: Statements in C++: `g` is the gradient, `h` a second value derived from it, `s0` … are the scalars, `i0[i]` …
            the variables' old values, `o0[i]` … their new ones.
        gradients: Names of the placeholders of `g` and `h`.
        scalars: The graph's tensors for `s0` ….
        is_exact: Whether its results are bit for bit those of the graph.
    """

    text: str
    gradients: tuple[str, ...]
    scalars: tuple[Tensor, ...]
    is_exact: bool

    @property
    def name(self) -> str | None:
        """Returns the name of the equal compiled formula; None if there is none."""
        return _compiled().get(self.text)


@functools.cache
def _compiled() -> dict[str, str]:
    """Returns the names of formulas that are compiled, by their texts; none on a machine without a compiler."""
    if _NATIVE is None:
        return {}
    header = (Path(__file__).parent / "native" / "formulas.h").read_text()
    return {text.strip(): name for name, text in _KNOWN.findall(header)}


def formula(graph: Graph, gradients: Collection[str], values: Sequence[str], results: Sequence[str]) -> Formula | None:
    """Returns an update as a formula; None if it has other operations, or more gradients than there are names.

    Args:
        graph: The graph of an elementwise update as a function of values (`pure.py`).
        gradients: Names of the placeholders of the gradient and of values derived from it.
        values: Names of the placeholders of the variables' values, the parameters first.
        results: For each variable, the tensor ("node:0") of its new value.
    """
    return _Writer(graph, gradients, values).write(results)


class _Writer:
    def __init__(self, graph: Graph, gradients: Collection[str], values: Sequence[str]):
        self._graph, self._gradients = graph, gradients
        self._names: dict[Tensor, str] = {}
        # Placeholders of gradients in the order in which they are met, which is that of their names.
        self._met: list[str] = []
        self._values: Mapping[Tensor, int] = {(name, 0): number for number, name in enumerate(values)}
        self._vectors = graph.descendants([*gradients, *values])
        self._lines: list[str] = []
        self._scalars: list[Tensor] = []
        self._is_exact = True

    def write(self, results: Sequence[str]) -> Formula | None:
        edges = [tensor(text) for text in results]
        if not all(self._defined(edge) for edge in edges):
            return None
        self._lines += [f"o{number}[i] = {self._names[self._graph.value(e)]};" for number, e in enumerate(edges)]
        return Formula("\n".join(self._lines), tuple(self._met), tuple(self._scalars), self._is_exact)

    def _defined(self, wanted: Tensor) -> bool:
        """Writes the statements that define a tensor's entry; returns whether that was possible."""
        # Without recursion: graphs are deep.
        waiting = [self._graph.value(wanted)]
        while waiting:
            edge = waiting[-1]
            inputs = [self._graph.value(e) for e in data_inputs(self._graph.nodes[edge[0]])]
            unknown = [e for e in inputs if e not in self._names] if self._is_computed(edge) else []
            if edge not in self._names and not unknown and not self._define(edge, inputs):
                return False
            waiting = [*waiting, *reversed(unknown)] if unknown else waiting[:-1]
        return True

    def _is_computed(self, edge: Tensor) -> bool:
        return edge not in self._values and edge[0] not in self._gradients and edge[0] in self._vectors

    def _define(self, edge: Tensor, inputs: Sequence[Tensor]) -> bool:
        if edge in self._values:
            self._names[edge] = f"v{self._values[edge]}"
            self._lines.append(f"const T v{self._values[edge]} = i{self._values[edge]}[i];")
        elif edge[0] in self._gradients:
            if len(self._met) == len(_GRADIENTS):
                return False
            self._names[edge] = _GRADIENTS[len(self._met)]
            self._met.append(edge[0])
        elif edge[0] not in self._vectors:
            self._names[edge] = f"s{len(self._scalars)}"
            self._scalars.append(edge)
        elif (node := self._graph.nodes[edge[0]]).op in _TEXTS:
            name = f"x{sum(line.startswith('const T x') for line in self._lines)}"
            given = [self._names[e] for e in inputs]
            by_root = node.op in _DIVISIONS and self._graph.nodes[inputs[1][0]].op == "Sqrt"
            self._is_exact = self._is_exact and node.op not in _INEXACT and not by_root
            self._lines.append(f"const T {name} = {_TEXTS[node.op].format(*given)};")
            self._names[edge] = name
        else:
            return False
        return True
