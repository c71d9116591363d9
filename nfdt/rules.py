"""Defines the update rules: one engine with five knobs, and the settings of each `--update`.

With τ the delay of a gradient g, computed from the weights w_bak and applied to w:

    compensate   g̃ = g + c,  c = λ g⊙g⊙(w − w_bak),  λ constant or λ0 / √(s + ε),  s the running mean of g⊙g
    correct      whether s is divided by 1 − mᵗ, as Adam does, before it is used
    clip         ‖c‖ ≤ κ ‖g‖, tensor by tensor
    reliability  ρ = 1, q / (q + τ), or 1 / number of workers
    weigh        what ρ acts on: nothing, the gradient (u ← (1 − ρ) u + ρ g̃ goes to the optimizer), the learning rate, or
                 the learning rate and the optimizer's momentum

Sources: dc-asgd-c and -a: Zheng et al., Asynchronous Stochastic Gradient Descent with Delay Compensation, ICML 2017. dynsgd:
Jiang et al., Heterogeneity-aware Distributed Parameter Servers, SIGMOD 2017. ddc-asgd weighs momentum and delayed gradient by
the size of each delay; its published abstract gives no formulas, the two forms here are this project's.
"""

import dataclasses
import enum
import math
from typing import Any

from fdt.errors import UsageError


class Strength(enum.Enum):
    """What the compensation is multiplied by."""

    NONE = enum.auto()
    CONSTANT = enum.auto()
    ADAPTIVE = enum.auto()


class Reliability(enum.Enum):
    """How the reliability ρ of a delayed gradient is computed."""

    FULL = enum.auto()
    BY_DELAY = enum.auto()
    BY_WORKERS = enum.auto()


class Weigh(enum.Enum):
    """What the reliability acts on."""

    NOTHING = enum.auto()
    GRADIENT = enum.auto()
    RATE = enum.auto()
    RATE_AND_MOMENTUM = enum.auto()


# Decay of the running mean of g⊙g, and the ε that keeps its root above zero (Zheng et al.).
DECAY, EPSILON = 0.95, 1e-7
# The least q of an optimizer with momentum, and the q of one without.
_LEAST_Q, _PLAIN_Q = 5.0, 10.0


@dataclasses.dataclass(frozen=True)
class Rule:
    """An update rule.

    Attributes:
        strength: None, λ or λ0 / √s.
        lambda0: λ, or λ0.
        correct: Whether s is corrected for having started at zero.
        clip: κ; infinite for no limit.
        reliability: Which ρ.
        q: Of ρ = q / (q + τ); None to derive it from the script's optimizer (`wanted_q`).
        weigh: What ρ acts on.
    """

    name: str
    strength: Strength = Strength.NONE
    lambda0: float = 0.0
    correct: bool = False
    clip: float = math.inf
    reliability: Reliability = Reliability.FULL
    q: float | None = None
    weigh: Weigh = Weigh.NOTHING

    @property
    def compensates(self) -> bool:
        """Whether gradients are compensated for the weights' movement since the pull."""
        return self.strength is not Strength.NONE and self.lambda0 != 0.0

    @property
    def is_plain(self) -> bool:
        """Whether gradients go to the optimizer unchanged."""
        return not self.compensates and self.weigh is Weigh.NOTHING

    def rho(self, delay: Any, num_workers: int, q: float) -> Any:
        """Returns ρ.

        Args:
            delay: τ, versions between pull and push: a number, or a tensor of floats.
            num_workers: How many workers the job has.
            q: As `wanted_q` returns it.
        """
        if self.reliability is Reliability.BY_WORKERS:
            return 1.0 / num_workers
        if self.reliability is Reliability.BY_DELAY:
            return 1.0 if math.isinf(q) else q / (q + delay)
        return 1.0

    def wanted_q(self, momentum: float | None, normalises: bool) -> float:
        """Returns q; unless the rule sets it, max(5, 1 / (1 − μ)) for a momentum method, 10 for plain SGD.

        For optimizers that normalise their steps (Adam, RMSprop, Adagrad) the rate is not weighed: a late gradient's step is no
        longer than another's, and weighing cost more than it gained in every measurement (decision 0082).

        Args:
            momentum: μ; None for an optimizer without momentum.
            normalises: Whether an optimizer without momentum keeps other state for each parameter.
        """
        if self.q is not None:
            return self.q
        if momentum is not None:
            return max(_LEAST_Q, 1.0 / (1.0 - momentum)) if momentum < 1.0 else math.inf
        return math.inf if normalises and self.weigh is Weigh.RATE_AND_MOMENTUM else _PLAIN_Q


_ADAPTIVE = Rule("dc-asgd-a", strength=Strength.ADAPTIVE, lambda0=2.0)
_RULES = {
    "asgd": Rule("asgd"),
    "dc-asgd-c": Rule("dc-asgd-c", strength=Strength.CONSTANT, lambda0=0.04),
    "dc-asgd-a": _ADAPTIVE,
    "dc-asgdk": Rule("dc-asgdk", reliability=Reliability.BY_WORKERS, weigh=Weigh.GRADIENT),
    "dynsgd": Rule("dynsgd", reliability=Reliability.BY_DELAY, q=1.0, weigh=Weigh.RATE),
}
_DDC = {
    "thesis": dataclasses.replace(
        _ADAPTIVE, name="ddc-asgd (thesis)", reliability=Reliability.BY_DELAY, weigh=Weigh.GRADIENT
    ),
    "robust": dataclasses.replace(
        _ADAPTIVE,
        name="ddc-asgd (robust)",
        correct=True,
        clip=1.0,
        reliability=Reliability.BY_DELAY,
        weigh=Weigh.RATE_AND_MOMENTUM,
    ),
}


def make_rule(update: str, ddc: str = "robust", lambda0: float | None = None, q: float | None = None) -> Rule:
    """Returns the rule that the options of the command line describe.

    Raises:
        UsageError: The rule does not know an option, or a value is out of range.
    """
    if update != "ddc-asgd" and update not in _RULES:
        raise UsageError(
            f"--update must be one of {', '.join([*_RULES, 'ddc-asgd', 'averaging'])}. Received: --update {update}"
        )
    if ddc not in _DDC:
        raise UsageError(f"--ddc must be one of {', '.join(_DDC)}. Received: --ddc {ddc}")
    rule = _DDC[ddc] if update == "ddc-asgd" else _RULES[update]
    if lambda0 is not None:
        if rule.strength is Strength.NONE:
            raise UsageError(f"--lambda0 goes with a rule that compensates delays; {update} does not. Leave it out.")
        if not 0.0 <= lambda0 < math.inf:
            raise UsageError(f"--lambda0 must be 0 or more. Received: --lambda0 {lambda0}")
        rule = dataclasses.replace(rule, lambda0=lambda0)
    if q is not None:
        if rule.reliability is not Reliability.BY_DELAY or update == "dynsgd":
            raise UsageError(f"--q goes with --update ddc-asgd. Received: --update {update} --q {q}")
        if not q > 0.0:
            raise UsageError(f"--q must be more than 0. Received: --q {q}")
        rule = dataclasses.replace(rule, q=q)
    return rule
