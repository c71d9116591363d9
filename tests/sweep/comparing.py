"""Whether two runs of a script printed the same."""

import re

NUMBER = re.compile(r"[-+]?(?:\d+\.\d*(?:[eE][-+]?\d+)?|\.\d+|\d+(?:[eE][-+]?\d+)?|\bnan\b|\binf\b)")
_FIXED = re.compile(r"[-+]?\d*\.(\d{3,})")
# How long something took, when it was, how fast, and where something is: hidden in the lines that tell it.
_FIGURE = r"(?:\d+(?:\.\d*)?(?:e[-+]?\d+)?|\.\d+)"
_UNIT = r"(?:[mun]?s|secs?|seconds?|minutes?|hours?)"
_THING = r"(?:it|steps?|epochs?|iters?|iterations?|batch|batches|examples?|images?|samples?|frames?)"
_FORMS = (
    r"0x[0-9a-f]+",
    r"\b\d{4}-\d\d-\d\d\b",
    r"(?:\d+ days?, )?\b\d+:\d\d:\d\d(?:[.,]\d+)?",
    r"\b\d\d?:\d\d\b(?![.:]\d)",
    r"\b(?:\d+h ?)?\d+m(?:in)? ?\d+(?:\.\d+)?s\b",
    rf"\b{_FIGURE} ?(?:{_UNIT}(?:/{_THING})?|{_THING}/(?:s|sec|second))\b",
    rf"\b(?:times?|elapsed|took|speed|duration|sec|seconds?)\b[^\w,;|.]+{_FIGURE}",
)
_HIDDEN = re.compile("|".join(_FORMS), re.IGNORECASE)
# A line that tells of a time in another form is left out.
_OF_TIMES = re.compile(r"\btimes?\b|\bsec(ond)?s?\b|\bspeed\b", re.IGNORECASE)
# Keras's progress bar amid an epoch, and at its end: what it is drawn with.
_AMID = re.compile(r"\s*\d+/(\d+|Unknown) .*(ETA:|/step|/epoch)")
_BAR = re.compile(r"\s*(\d+)/\1 .*/(step|epoch)")
_OF_BAR = re.compile(r"[━ ]")
_COLORS = re.compile(r"\x1b\[[0-9;]*m")


def largest_difference(one: str, other: str, is_whole: bool = True) -> float | None:
    """Returns the largest relative difference of numbers that were printed; None if the text around them differs.

    Numbers below a thousandth are held against that, and one of the last digit of three or more behind the point is no
    difference; times are left out. Of runs that are not whole, the lines are
    compared that both have printed to their ends.
    """
    first, second = map(lines, (one, other))
    if not is_whole:
        length = min(len(first), len(second)) - 1
        first, second = first[:length], second[:length]
    return _of_lines(first, second)


def difference_at_end(one: str, other: str) -> float | None:
    """Returns the same of the last line with numbers."""
    ends = ([line for line in lines(text) if NUMBER.search(line)][-1:] for text in (one, other))
    return _of_lines(*ends)


def lines(text: str) -> list[str]:
    """Returns the lines that are compared; of a progress bar that is drawn anew what it says last."""
    kept: list[str] = []
    drawn = None
    for line in filter(str.strip, _COLORS.sub("", text.replace("\x08", "\n")).splitlines()):
        bar = _BAR.match(line)
        if bar and drawn == bar[1]:
            kept.pop()
        drawn = bar[1] if bar else None
        shown, hidden = _HIDDEN.subn("", line)
        if bar:
            kept.append(_OF_BAR.sub("", shown))
        elif not _AMID.match(line) and (hidden or not _OF_TIMES.search(line)):
            kept.append(" ".join(shown.split()))
    return kept


def _of_lines(first: list[str], second: list[str]) -> float | None:
    if [NUMBER.sub("#", line) for line in first] != [NUMBER.sub("#", line) for line in second]:
        return None
    numbers = (NUMBER.findall("\n".join(each)) for each in (first, second))
    return max((_apart(a, b) for a, b in zip(*numbers, strict=True)), default=0.0)


def _apart(first: str, second: str) -> float:
    one, other = float(first), float(second)
    if one == other or (one != one and other != other):
        return 0.0
    digits = [match[1] for match in map(_FIXED.fullmatch, (first, second)) if match]
    # What rounds to the next last digit of a few is not told apart; whole numbers are counted, not rounded.
    if len(digits) == 2 and len(digits[0]) == len(digits[1]) and abs(one - other) < 1.5 * 10.0 ** -len(digits[0]):
        return 0.0
    return abs(one - other) / (abs(one) + 1e-3)
