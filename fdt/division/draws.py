"""Rules for random numbers: every worker draws all of them, as the script does, and keeps those of its rows.

If `--relax` allows it, a worker draws only the numbers of its rows, from a seed of its own.
"""

import math

import tensorflow as tf

from fdt.base.relaxation import RANDOM
from fdt.division.kinds import DRAWING
from fdt.division.walker import Node
from fdt.program.layout import WHOLE, Divided
from fdt.program.size import value_of
from fdt.program.value import Value

# Operations whose second input is a seed or a key; operations with a seed in an attribute.
_OF_A_SEED = frozenset(name for name in DRAWING if name.startswith("Stateless") and "Parameterized" not in name)
_OF_AN_ATTRIBUTE = frozenset({"RandomStandardNormal", "RandomUniform", "RandomUniformInt", "TruncatedNormal"})


def drawn(node: Node) -> list[Value] | None:
    """Divides random numbers if there are as many as the batch has rows; they also stay available whole."""
    if any(layout != WHOLE for layout in node.layouts):
        return None
    own = _own_numbers(node) if RANDOM in node.walk.relaxed else None
    if own is not None:
        return own
    (value,) = node.all_whole()
    part = node.in_parts(value)
    if part is not value:
        node.walk.numbers_drawn += math.prod(value_of(size or 0) for size in value.shape or ())
    return [part]


def _added(rank: int) -> int:
    """Returns what a worker adds to a seed: 0 for the first worker, and different for any two workers."""
    return rank * 0x1E3779B9 % (1 << 31)


def _own_numbers(node: Node) -> list[Value] | None:
    shape = node.constant(0)
    sizes = node.walk.rows.get(shape[0]) if shape is not None and shape.size else None
    if shape is None or sizes is None:
        return None
    layout = Divided(0, sizes)
    shapes = node.constants(0, lambda rank: [sizes[rank], *shape[1:]])
    rest = [node.whole(i) for i in range(1, len(node.inputs))]
    if node.op.type in _OF_A_SEED:
        seeds = node.walk.computed(lambda rank, seed: seed + tf.cast(_added(rank), seed.dtype), [node.held(1, WHOLE)])
        rest[0] = seeds[0]
        return node.run([shapes, *rest], layout)
    if node.op.type not in _OF_AN_ATTRIBUTE:
        return None
    parts = [
        node.emit([each[place] for each in (shapes, *rest)], seed2=node.attr("seed2") + _added(rank))[0]
        for place, rank in enumerate(node.walk.exchange.ranks)
    ]
    return [node.value(layout, parts)]


def rules() -> dict[str, object]:
    """Returns the rules of this file by operation."""
    return dict.fromkeys(DRAWING, drawn)
