"""Rules for variables that workers hold in part: adding to them needs no exchange until their value is read."""

from fdt.division.walker import Node
from fdt.program.layout import PARTIAL, Partial
from fdt.program.value import Value


def read(node: Node) -> list[Value] | None:
    """ReadVariableOp."""
    return node.run([node.own(0)], PARTIAL) if isinstance(node.layouts[0], Partial) else None


def written(node: Node) -> list[Value] | None:
    """AssignVariableOp, AssignAddVariableOp, AssignSubVariableOp: only one worker adds a whole value."""
    if not isinstance(node.layouts[0], Partial):
        return None
    runs = zip(node.own(0), node.local(1, PARTIAL), strict=True)
    for handle, value in runs:
        node.emit([handle, value])
    return []


def rules() -> dict[str, object]:
    """Returns the rules of this file by operation."""
    return {
        "ReadVariableOp": read,
        **dict.fromkeys(("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"), written),
    }
