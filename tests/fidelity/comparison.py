"""Compares what a case gave under plain python with what it gave under fdt.

The tolerances are those of the issue, after 5 epochs:

| what | difference | limit |
|---|---|---|
| losses, means of real numbers | relative to plain python's | 1e-4 |
| accuracy, precision, recall, rates | absolute | 1e-6 |
| weights, predictions | absolute | 1e-4 |
| optimizer variables | relative to the largest entry of the variable | 1e-3 |
| iterations, epochs | | equal |
| printed lines | their numbers as for losses, with one unit of the last place | words equal |

AUC sums over 200 thresholds: a prediction that moves over one by a rounding is one sample in the wrong bin, so it
is compared as losses are.
"""

import dataclasses
import re
from collections.abc import Mapping

import numpy as np

Results = Mapping[str, np.ndarray]

RATES = ("accuracy", "precision", "recall", "learning_rate")
LIMITS = {"loss": 1e-4, "rate": 1e-6, "weights": 1e-4, "state": 1e-3, "count": 0.0, "text": 1e-4}
_NUMBER = re.compile(r"\d+\.\d+(?:e[+-]?\d+)?")
_TIMES = re.compile(r"\s\d+m?s(?:/(?:step|epoch))?|\s\d+[um]s/step|\s\d+:\d+(?::\d+)?")
# Colours stand between a time and the space before it.
_COLOURS = re.compile(r"\x1b\[[\d;]*m")


@dataclasses.dataclass(frozen=True)
class Difference:
    """The largest difference of one array: `kind` is a key of LIMITS."""

    name: str
    kind: str
    value: float

    @property
    def within(self) -> bool:
        # NaN, which only one of them has, is within no limit.
        return self.value <= LIMITS[self.kind]

    def __str__(self) -> str:
        return f"{self.name}: {self.value:.3g}, limit {LIMITS[self.kind]:g} ({self.kind})"


def compare(plain: Results, distributed: Results) -> list[Difference]:
    """Returns one difference for each array; an array that only one of them has is infinitely different."""
    names = sorted(set(plain) | set(distributed))
    return [_difference(name, plain.get(name), distributed.get(name)) for name in names]


def largest(differences: list[Difference]) -> dict[str, float]:
    """Returns the largest difference of each kind."""
    found: dict[str, float] = {}
    for difference in differences:
        # NaN wins.
        found[difference.kind] = float(np.maximum(found.get(difference.kind, 0.0), difference.value))
    return found


def assert_equal(plain: Results, distributed: Results, limit: float = 0.0) -> None:
    """Checks that all arrays are equal, bit for bit, or up to an absolute difference."""
    assert sorted(plain) == sorted(distributed)
    differences = {name: _apart(value, distributed[name]) for name, value in plain.items()}
    assert max(differences.values()) <= limit, differences


def _apart(one: np.ndarray, other: np.ndarray) -> float:
    if one.shape != other.shape:
        return float("inf")
    return float(np.max(np.abs(one.astype(np.float64) - other.astype(np.float64)), initial=0.0))


def kind_of(name: str) -> str:
    """Returns how an array is compared, from its name."""
    group, _, rest = name.partition("/")
    if group in ("history", "logs", "evaluate"):
        return "rate" if any(rate in rest for rate in RATES) else "loss"
    return {"weights": "weights", "predict": "weights", "optimizer": "state", "count": "count", "text": "text"}[group]


def _difference(name: str, plain: np.ndarray | None, distributed: np.ndarray | None) -> Difference:
    kind = kind_of(name)
    if plain is None or distributed is None or plain.shape != distributed.shape:
        return Difference(name, kind, np.inf)
    if kind == "text":
        return Difference(name, kind, _text_difference(list(plain), list(distributed)))
    return Difference(name, kind, _array_difference(kind, plain.astype("float64"), distributed.astype("float64")))


def _array_difference(kind: str, plain: np.ndarray, distributed: np.ndarray) -> float:
    both_nan = np.isnan(plain) & np.isnan(distributed)
    apart = np.where(both_nan | (plain == distributed), 0.0, np.abs(plain - distributed))
    if kind == "loss":
        apart = apart / np.maximum(np.nan_to_num(np.abs(plain)), 1e-12)
    if kind == "state" and plain.size:
        apart = apart / max(float(np.nan_to_num(np.abs(plain)).max()), 1e-12)
    return float(apart.max(initial=0.0))


def _text_difference(plain: list[str], distributed: list[str]) -> float:
    pairs = [(_split(one), _split(other)) for one, other in zip(plain, distributed, strict=True)]
    if any(words != other_words for (words, _), (other_words, _) in pairs):
        return np.inf
    numbers = [(a, b) for (_, one), (_, other) in pairs for a, b in zip(one, other, strict=True)]
    return max((_printed_difference(a, b) for a, b in numbers), default=0.0)


def _split(line: str) -> tuple[str, list[str]]:
    """Returns the line without times and numbers, and its numbers."""
    line = _TIMES.sub(" TIME", _COLOURS.sub("", line))
    return _NUMBER.sub("NUMBER", line), _NUMBER.findall(line)


def _printed_difference(one: str, other: str) -> float:
    """Relative difference beyond one unit of the last place printed."""
    mantissa, _, exponent = one.partition("e")
    unit = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
    # A little more than a unit: 0.1235 - 0.1234 is not 0.0001 in binary.
    return max(0.0, abs(float(one) - float(other)) - 1.001 * unit) / max(abs(float(one)), 1e-12)
