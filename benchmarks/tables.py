"""Tables that line up in a terminal and are Markdown in a file."""

import statistics
from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a Markdown table whose columns line up: the first to the left, the others to the right."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join(_line(row, widths) for row in (header, rule, *rows))


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first = cells[0].ljust(widths[0])
    return " | ".join([first, *(cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))])


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Returns `median (min–max)`, or a dash for no values."""
    if not values:
        return "–"
    median, least, most = statistics.median(values), min(values), max(values)
    return f"{median:.{digits}f} ({least:.{digits}f}–{most:.{digits}f})"
