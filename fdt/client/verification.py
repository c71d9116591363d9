"""Compares the same steps on the pool and on this machine, variable by variable (`fdt verify`)."""

import dataclasses
import enum
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

Values = Mapping[str, "np.ndarray"]

# A sum over rows in another order rounds more than once: up to so many times the effect of the weights' last digit is rounding,
_ROUNDINGS = 10
# but never so many times the tolerance: an error of that size would pass as rounding.
_STRETCH = 5
# A difference above so many times the effect of rounding on this machine is an error.
_NO_ROUNDING = 100
# Factor for the tolerance in double precision: rounding is a billionth of that in single precision, an error is unchanged.
_DOUBLE_SHRINKS = 1e-2
# A weight that a step changes by less than this part of its largest change is compared with that part: its gradient may be
# rounding alone, as that of a bias in front of a BatchNormalization is.
_SMALL = 1e-2


class Verdict(enum.Enum):
    """The result of comparing steps; its value is the exit status of `fdt verify`."""

    AGREES = 0
    DIFFERS = 1
    UNPROVEN = 3


@dataclasses.dataclass(frozen=True)
class Difference:
    """The difference between the pool's and this machine's value of one variable.

    Attributes:
        name: Name of the variable, or "loss".
        value: The largest difference of an entry; see `differences`.
    """

    name: str
    value: float

    def __str__(self) -> str:
        return f"{self.value:.1e} ({self.name})"


@dataclasses.dataclass(frozen=True)
class MadeTwice:
    """Variables by their names, before and after a step.

    Attributes:
        before: Values before the step, on both.
        in_place: This machine's values after the step.
        on_pool: The pool's values after the step.
        trained: Names of the trained variables.
    """

    before: Values
    in_place: Values
    on_pool: Values
    trained: Collection[str]


@dataclasses.dataclass(frozen=True)
class ComparedStep:
    """One step, made twice.

    Attributes:
        step: Counted from 1, over the whole script.
        differences: Differences of the loss and of every variable, the largest first.
        rounding: The largest difference on this machine between the step and the same step from weights that are off by their
            last digit; 0 if it was not measured.
    """

    step: int
    differences: tuple[Difference, ...]
    rounding: float

    def verdict(self, tolerance: float) -> Verdict:
        """Returns what this step alone shows."""
        value = self.differences[0].value
        if value <= tolerance or (value <= _ROUNDINGS * self.rounding and value < _STRETCH * tolerance):
            return Verdict.AGREES
        return Verdict.DIFFERS if value > _NO_ROUNDING * self.rounding else Verdict.UNPROVEN


@dataclasses.dataclass(frozen=True)
class InDouble:
    """The result of the same steps in double precision.

    Attributes:
        verdict: UNPROVEN if the script does not make as many steps in double precision.
        line: A line about it.
    """

    verdict: Verdict
    line: str

    def text(self) -> str:
        """Returns the result as one text."""
        return f"{self.verdict.name} {self.line}"

    @classmethod
    def of(cls, text: str) -> "InDouble":
        """Reads what `text` returned."""
        verdict, _, line = text.partition(" ")
        return cls(Verdict[verdict], line)


class Verification:
    """Gathers compared steps until there are enough."""

    def __init__(self, num_steps: int, tolerance: float, in_double: bool = False) -> None:
        """
        Args:
            num_steps: Number of steps to compare.
            tolerance: The largest difference that is only rounding, in single precision.
            in_double: Whether the script is to compute in double precision.
        """
        self.num_steps = num_steps
        self.tolerance = tolerance * _DOUBLE_SHRINKS if in_double else tolerance
        self.in_double = in_double
        self.steps: list[ComparedStep] = []
        # Known causes of a difference, in words.
        self.reasons: dict[str, None] = {}
        # Trained variables of another precision in a script that should compute in double precision.
        self._others: dict[str, None] = {}

    @property
    def complete(self) -> bool:
        """Whether enough steps have been compared."""
        return len(self.steps) >= self.num_steps

    @property
    def verdict(self) -> Verdict:
        """The verdict from the compared steps alone; DIFFERS without steps."""
        if not self.steps:
            return Verdict.DIFFERS
        verdicts = {step.verdict(self.tolerance) for step in self.steps}
        return next(v for v in (Verdict.DIFFERS, Verdict.UNPROVEN, Verdict.AGREES) if v in verdicts)

    @property
    def within_tolerance(self) -> bool:
        """Whether all differences of all steps are within the tolerance."""
        return bool(self.steps) and all(s.differences[0].value <= self.tolerance for s in self.steps)

    def add(self, losses: tuple[float, float] | None, made: MadeTwice, nudged: Callable[[], Values]) -> str:
        """Compares a step; returns a line about it.

        Args:
            losses: The loss on this machine and on the pool.
            made: The variables before and after the step.
            nudged: Returns this machine's variables after the same step from weights that are off by their last digit.
        """
        if self.in_double:
            self._others |= dict.fromkeys(n for n in sorted(made.trained) if made.before[n].dtype.name != "float64")
        found = differences(made, made.on_pool)
        if losses is not None:
            found.append(Difference("loss", _relative(*losses)))
        found.sort(key=lambda difference: -difference.value)
        rounding, also = 0.0, ""
        if found[0].value > self.tolerance:
            rounding = max(difference.value for difference in differences(made, nudged()))
            also = f"; weights off by their last digit make one of {rounding:.1e} here"
        self.steps.append(ComparedStep(len(self.steps) + 1, tuple(found), rounding))
        shown = "" if losses is None else f"loss {losses[0]:.6g} in place, {losses[1]:.6g} on the pool; "
        return f"step {len(self.steps)}: {shown}largest difference {found[0]}{also}"

    def shown_in_double(self, num_steps: int) -> InDouble:
        """Returns the result of these steps, made in double precision.

        Args:
            num_steps: Number of steps that the script has made in single precision.
        """
        if self._others:
            name = next(iter(self._others))
            return InDouble(Verdict.UNPROVEN, f"the script chooses the precision of {name} itself")
        if len(self.steps) < num_steps:
            return InDouble(Verdict.UNPROVEN, f"the script makes {len(self.steps)} of {num_steps} steps")
        verdict = Verdict.AGREES if self.within_tolerance else Verdict.DIFFERS
        return InDouble(verdict, f"largest difference {self._worst.differences[0]}")

    @property
    def _worst(self) -> ComparedStep:
        return max(self.steps, key=lambda step: step.differences[0].value)

    def conclusion(self, in_double: InDouble | None) -> tuple[Verdict, list[str]]:
        """Returns the verdict and the lines to print.

        Args:
            in_double: The result of the same steps in double precision; None if they were not made so.
        """
        if not self.steps:
            return Verdict.DIFFERS, ["no training step was found, so nothing was verified"]
        counted = f"{len(self.steps)} step{'' if len(self.steps) == 1 else 's'}"
        line = f"{counted} compared: largest difference {self._worst.differences[0]} in step {self._worst.step}"
        if self.within_tolerance:
            return Verdict.AGREES, [f"{line}, within the tolerance of {self.tolerance:g}"]
        lines = [f"{line}, beyond the tolerance of {self.tolerance:g}"]
        if in_double is not None:
            lines.append(f"in double precision: {in_double.line}")
        verdict = Verdict.UNPROVEN if in_double is None else in_double.verdict
        if verdict is not Verdict.UNPROVEN:
            rounding = "the difference is rounding: in double precision it is gone"
        else:
            verdict = self.verdict
            rounding = "the difference is rounding: weights off by their last digit make as large a one on this machine"
        if verdict is Verdict.AGREES:
            return verdict, [*lines, rounding]
        return verdict, [*lines, *self._arose(verdict)]

    def _arose(self, verdict: Verdict) -> list[str]:
        """Returns lines on the origin of a difference that is or may be an error."""
        first = next(step for step in self.steps if step.differences[0].value > self.tolerance)
        beyond = [d for d in first.differences if d.value > self.tolerance]
        more = f", and {len(beyond) - 3} more" if len(beyond) > 3 else ""
        lines = [f"it arose in step {first.step}: {', '.join(map(str, beyond[:3]))}{more}"]
        if self.reasons:
            return [*lines, *(f"it may come from this: {reason}" for reason in self.reasons)]
        if verdict is Verdict.UNPROVEN:
            lines.append(
                "not proven: rounding may make such a difference in this script, and so may an error. Have the script compute "
                "in double precision (keras.config.set_floatx('float64'), data of float64), and verify that"
            )
        else:
            lines.append("rounding does not make such a difference; please report this with the script")
        return lines


def differences(made: MadeTwice, after: Values) -> list[Difference]:
    """Returns the differences between values after a step and this machine's.

    For trained variables they are relative to the largest change that the step makes to an entry, beyond the last two digits of
    the values themselves: an error of a gradient is as visible at a small learning rate as at a large one. For other numbers
    they are relative to the largest entry, if that is above 1; values that are not real or complex numbers are equal or not.

    Args:
        made: The step.
        after: The values to compare with `made.in_place`.
    """
    changes = {name: _largest(made.in_place[name], made.before[name]) for name in made.trained}
    least = _SMALL * max(changes.values(), default=0.0)
    found = []
    for name, mine in made.in_place.items():
        if name in changes:
            value = distance(mine, after[name], max(changes[name], least) or None)
        else:
            value = distance(mine, after[name])
        found.append(Difference(name, value))
    return found


def distance(one: "np.ndarray", other: "np.ndarray", scale: float | None = None) -> float:
    """Returns the largest difference of an entry; inf if only one of them is NaN.

    Args:
        one: An array.
        other: Another.
        scale: What differences are relative to, beyond two roundings of an entry; None for the largest entry, if above 1.
    """
    import numpy as np

    if one.shape != other.shape or (one.dtype == object and not np.array_equal(one, other)):
        return float("inf")
    kind = _kind(one)
    if kind is None:
        return 0.0 if np.array_equal(one, other) else float("inf")
    first, second = one.astype(kind), other.astype(kind)
    apart = np.where((first == second) | (np.isnan(first) & np.isnan(second)), 0.0, np.abs(first - second))
    if scale is None:
        scale = max(1.0, float(np.max(np.abs(first), initial=0.0)))
    else:
        apart = np.maximum(0.0, apart - 2 * _epsilon(one) * np.maximum(np.abs(first), np.abs(second)))
    return float(np.nan_to_num(np.max(apart, initial=0.0) / scale, nan=float("inf")))


def nudged(value: "np.ndarray") -> "np.ndarray":
    """Returns numbers changed in their last digit, up or down; values of types other than NumPy's float and complex unchanged.

    Zero stays zero, since a ReLU has its kink there.
    """
    import numpy as np

    if value.dtype.kind == "c":
        return nudged(value.reshape(-1).view(value.real.dtype)).view(value.dtype).reshape(value.shape)
    if value.dtype.kind != "f":
        return value
    up = np.random.default_rng(0).random(value.shape) < 0.5
    towards = np.where(up, np.inf, -np.inf).astype(value.dtype)
    return np.where(value == 0, value, np.nextafter(value, towards))


def _kind(array: "np.ndarray") -> Any:
    """Returns the type in which an array's values are compared as numbers; None if they can only be equal or not."""
    import ml_dtypes
    import numpy as np

    if array.dtype.kind == "c":
        return np.complex128
    try:
        ml_dtypes.finfo(array.dtype)
    except (ValueError, KeyError, TypeError):
        return None
    return np.float64


def _epsilon(array: "np.ndarray") -> float:
    import ml_dtypes

    return float(ml_dtypes.finfo(array.dtype).eps)


def _largest(one: "np.ndarray", other: "np.ndarray") -> float:
    """Returns the largest finite difference of an entry."""
    import numpy as np

    kind = _kind(one)
    if kind is None:
        return 0.0
    apart = np.abs(one.astype(kind) - other.astype(kind))
    return float(np.max(np.where(np.isfinite(apart), apart, 0.0), initial=0.0))


def _relative(one: float, other: float) -> float:
    import numpy as np

    if one == other or (np.isnan(one) and np.isnan(other)):
        return 0.0
    return float(np.nan_to_num(abs(one - other) / max(abs(one), 1e-12), nan=float("inf")))
