"""What slices take of a tensor: which dimensions, and how many entries of each."""

from typing import TYPE_CHECKING, Any

from fdt.program.size import Dim, Size
from fdt.program.value import Shape

if TYPE_CHECKING:
    from fdt.division.walker import Node


def picked(node: "Node", first: int, old_rank: int) -> list[tuple[int, Any]] | None:
    """Returns what a StridedSlice, whose bounds begin with the input `first`, does to each dimension of its input.

    Returns:
        (dimension, "kept" | "gone" | (begin, end, stride, place in the masks)), in the order of the output, with new dimensions
        as (-1, "new"); None if it is not known.
    """
    begin, end, strides = (node.constant(first + i) for i in range(3))
    if begin is None or end is None or strides is None:
        return None
    masks = {name: int(node.attr(f"{name}_mask")) for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}
    result: list[tuple[int, Any]] = []
    dim, count = 0, len(begin)
    after_ellipsis = 0
    for i in range(count):
        if masks["ellipsis"] >> i & 1:
            after_ellipsis = sum(not masks["new_axis"] >> j & 1 for j in range(i + 1, count))
            while dim < old_rank - after_ellipsis:
                result.append((dim, "kept"))
                dim += 1
        elif masks["new_axis"] >> i & 1:
            result.append((-1, "new"))
        elif masks["shrink_axis"] >> i & 1:
            result.append((dim, "gone"))
            dim += 1
        else:
            full = masks["begin"] >> i & 1 and masks["end"] >> i & 1 and int(strides[i]) == 1
            result.append((dim, "kept" if full else (_dim(begin[i]), _dim(end[i]), int(strides[i]), i)))
            dim += 1
    result += [(d, "kept") for d in range(dim, old_rank)]
    return result


def _dim(size: Any) -> Dim:
    return size if isinstance(size, Size) else int(size)


def strided(node: "Node", shape: tuple[Dim | None, ...]) -> Shape:
    """Returns the shape of a StridedSlice's output, for its input's."""
    taken = picked(node, 1, len(shape))
    if taken is None:
        return None
    found: list[Dim | None] = []
    for dim, what in taken:
        if what == "new":
            found.append(1)
        elif what == "kept":
            found.append(shape[dim])
        elif what != "gone":
            found.append(_taken(node, shape[dim], *what))
    return tuple(found)


def _taken(node: "Node", size: Dim | None, begin: Dim, end: Dim, stride: int, i: int) -> Dim | None:
    """Returns how many entries a slice takes of a dimension."""
    is_whole = node.attr("begin_mask") >> i & 1, node.attr("end_mask") >> i & 1
    if size is None or (stride < 0 and not all(is_whole)):
        return None
    first = 0 if is_whole[0] else _within(begin, size)
    last = size if is_whole[1] else _within(end, size)
    return (last - first + abs(stride) - 1) // abs(stride) if last > first else 0


def _within(place: Dim, size: Dim) -> Dim:
    """Returns where a slice begins or ends: counted from the end if negative, and no further than the end."""
    place = place + size if place < 0 else place
    return 0 if place < 0 else size if place > size else place
