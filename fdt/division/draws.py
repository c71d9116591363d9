"""Rules for random numbers: every worker draws all of them, so they are the script's, and goes on with those of its rows."""

from fdt.division.layout import WHOLE, Divided
from fdt.division.value import Value
from fdt.division.walker import Node

_DRAWING = """
RandomStandardNormal RandomUniform RandomUniformInt TruncatedNormal ParameterizedTruncatedNormal RandomGamma RandomPoissonV2
StatefulStandardNormalV2 StatefulTruncatedNormal StatefulUniform StatefulUniformInt StatefulUniformFullInt
StatelessRandomNormal StatelessRandomNormalV2 StatelessRandomUniform StatelessRandomUniformV2
StatelessRandomUniformInt StatelessRandomUniformIntV2 StatelessRandomUniformFullInt StatelessRandomUniformFullIntV2
StatelessTruncatedNormal StatelessTruncatedNormalV2 StatelessParameterizedTruncatedNormal
""".split()


def drawn(node: Node) -> list[Value] | None:
    """Divided where there are as many numbers as the batch has rows; whoever needs them whole has them."""
    if any(layout != WHOLE for layout in node.layouts):
        return None
    (value,) = node.all_whole()
    sizes = node.walk.rows.get(value.shape[0]) if value.shape else None
    if sizes is None:
        return [value]
    layout = Divided(0, sizes)
    part = node.walk.converted(value, layout, node.op.name)
    return [Value(layout, node.op.name, part.tensors, whole=lambda: value.tensors[0])]


def rules() -> dict[str, object]:
    """Returns the rules of this file by operation."""
    return dict.fromkeys(_DRAWING, drawn)
