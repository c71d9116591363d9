"""Whether the pool trains as this machine does: the same steps from the same state, compared variable by variable."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

# A difference that is so many times what the last digit of the weights makes is still taken for rounding: a sum over rows in
# another order rounds more often than once.
_ROUNDINGS = 10


@dataclasses.dataclass(frozen=True)
class Difference:
    """How far one value of the pool's is from this machine's.

    Attributes:
        name: Of the variable, or "loss".
        value: The largest difference of an entry, relative to the largest entry if that is above 1.
    """

    name: str
    value: float


@dataclasses.dataclass(frozen=True)
class ComparedStep:
    """One step, made twice.

    Attributes:
        step: Counted from 1, over the whole script.
        losses: In place and on the pool; None where the step tells no loss.
        differences: Of the loss and of every variable, the largest first.
        rounding: The largest difference that steps on this machine have from its own, from weights that were off by their last
            digit; 0 where it was not asked for.
    """

    step: int
    losses: tuple[float, float] | None
    differences: tuple[Difference, ...]
    rounding: float

    def agrees(self, tolerance: float) -> bool:
        """Returns whether both are the same, but for rounding."""
        return self.differences[0].value <= max(tolerance, _ROUNDINGS * self.rounding)


class Verification:
    """Gathers compared steps until there are enough."""

    def __init__(self, num_steps: int, tolerance: float) -> None:
        """Begins with none.

        Args:
            num_steps: How many are enough.
            tolerance: The largest difference that is only rounding.
        """
        self.num_steps, self.tolerance = num_steps, tolerance
        self.steps: list[ComparedStep] = []
        # What is known to make a difference, in words.
        self.reasons: dict[str, None] = {}

    @property
    def complete(self) -> bool:
        """Whether there are enough."""
        return len(self.steps) >= self.num_steps

    @property
    def passed(self) -> bool:
        """Whether there are steps, and all of them agree."""
        return bool(self.steps) and all(step.agrees(self.tolerance) for step in self.steps)

    def add(
        self,
        losses: tuple[float, float] | None,
        in_place: Mapping[str, "np.ndarray"],
        on_pool: Mapping[str, "np.ndarray"],
        nudged: Callable[[], Mapping[str, "np.ndarray"]],
    ) -> str:
        """Compares a step; returns a line about it.

        Args:
            losses: In place and on the pool.
            in_place: This machine's variables after the step.
            on_pool: The pool's, by the same names.
            nudged: Returns this machine's again, from weights that were off by their last digit.
        """
        differences = [Difference(name, distance(in_place[name], on_pool[name])) for name in in_place]
        if losses is not None:
            differences.append(Difference("loss", _relative(*losses)))
        differences.sort(key=lambda difference: -difference.value)
        rounding, also = 0.0, ""
        if differences[0].value > self.tolerance:
            own = nudged()
            rounding = max(distance(in_place[name], own[name]) for name in in_place)
            also = f"; weights off by their last digit make one of {rounding:.1e} here"
        self.steps.append(ComparedStep(len(self.steps) + 1, losses, tuple(differences), rounding))
        shown = "" if losses is None else f"loss {losses[0]:.6g} in place, {losses[1]:.6g} on the pool; "
        return f"step {len(self.steps)}: {shown}largest difference {_told(differences[0])}{also}"

    def conclusion(self) -> list[str]:
        """Returns what there is to say at the end."""
        if not self.steps:
            return ["no training step was found, so nothing was verified"]
        worst = max(self.steps, key=lambda step: step.differences[0].value)
        counted = f"{len(self.steps)} step{'' if len(self.steps) == 1 else 's'}"
        line = f"{counted} compared: largest difference {_told(worst.differences[0])} in step {worst.step}"
        if self.passed and worst.differences[0].value <= self.tolerance:
            return [f"{line}, within the tolerance of {self.tolerance:g}"]
        if self.passed:
            return [
                f"{line}; that is rounding, which these steps magnify: on this machine alone, weights off by their last digit "
                f"lead to differences of {worst.rounding:.1e}"
            ]
        first = next(step for step in self.steps if not step.agrees(self.tolerance))
        beyond = [d for d in first.differences if d.value > self.tolerance]
        more = f", and {len(beyond) - 3} more" if len(beyond) > 3 else ""
        return [
            f"{line}, beyond the tolerance of {self.tolerance:g}",
            f"it arose in step {first.step}: {', '.join(map(_told, beyond[:3]))}{more}",
            *(
                [f"it may come from this: {reason}" for reason in self.reasons]
                or ["no layer of the model explains it; please report this with the script"]
            ),
        ]


def distance(one: "np.ndarray", other: "np.ndarray") -> float:
    """Returns the largest difference of an entry, relative to the largest entry if that is above 1; inf for a NaN.

    Strings are equal, or differ infinitely.
    """
    import numpy as np

    if one.shape != other.shape or (one.dtype == object and not np.array_equal(one, other)):
        return float("inf")
    if one.dtype == object:
        return 0.0
    wide = np.complex128 if one.dtype.kind == "c" else np.float64
    first, second = one.astype(wide), other.astype(wide)
    apart = np.where((first == second) | (np.isnan(first) & np.isnan(second)), 0.0, np.abs(first - second))
    scale = max(1.0, float(np.max(np.abs(first), initial=0.0)))
    return float(np.nan_to_num(np.max(apart, initial=0.0) / scale, nan=float("inf")))


def nudged(value: "np.ndarray") -> "np.ndarray":
    """Returns numbers off by their last digit, up or down; what is neither of NumPy's floats nor complex as it is.

    Zero stays what it is, however it is computed: it is where a ReLU turns.
    """
    import numpy as np

    if value.dtype.kind == "c":
        return nudged(value.reshape(-1).view(value.real.dtype)).view(value.dtype).reshape(value.shape)
    if value.dtype.kind != "f":
        return value
    up = np.random.default_rng(0).random(value.shape) < 0.5
    towards = np.where(up, np.inf, -np.inf).astype(value.dtype)
    return np.where(value == 0, value, np.nextafter(value, towards))


def _relative(one: float, other: float) -> float:
    import numpy as np

    if one == other or (np.isnan(one) and np.isnan(other)):
        return 0.0
    return float(np.nan_to_num(abs(one - other) / max(abs(one), 1e-12), nan=float("inf")))


def _told(difference: Difference) -> str:
    return f"{difference.value:.1e} ({difference.name})"
