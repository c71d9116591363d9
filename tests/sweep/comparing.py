"""Whether two runs of a script printed the same."""

import re

_NUMBER = re.compile(r"[-+]?(?:\d+\.\d*(?:[eE][-+]?\d+)?|\.\d+|\d+(?:[eE][-+]?\d+)?|\bnan\b|\binf\b)")
# Lines that tell how long something took, when it was, or where something is.
_OF_TIMES = re.compile(r"\btimes?\b|\bsec(ond)?s?\b|ms/step|s/step|\d+:\d\d|0x[0-9a-f]+|\bspeed\b", re.IGNORECASE)


def largest_difference(one: str, other: str) -> float | None:
    """Returns the largest relative difference of numbers that were printed; None if the text around them differs.

    Numbers below a thousandth are held against that; lines of times are left out.
    """
    first, second = ([line for line in text.splitlines() if not _OF_TIMES.search(line)] for text in (one, other))
    if [_NUMBER.sub("#", line) for line in first] != [_NUMBER.sub("#", line) for line in second]:
        return None
    numbers = (_NUMBER.findall("\n".join(lines)) for lines in (first, second))
    return max((_apart(float(a), float(b)) for a, b in zip(*numbers, strict=True)), default=0.0)


def _apart(one: float, other: float) -> float:
    if one == other or (one != one and other != other):
        return 0.0
    return abs(one - other) / (abs(one) + 1e-3)
