import math

import pytest

from fdt.errors import UsageError
from nfdt.options import read_options
from nfdt.rules import Reliability, Strength, Weigh, make_rule


def test_the_default_is_the_robust_form_of_ddc_asgd() -> None:
    options = read_options({})
    assert options.rule == make_rule("ddc-asgd", "robust")
    assert (options.num_shards, options.max_delay) == (1, None)
    rule = options.rule
    assert rule is not None
    assert (rule.strength, rule.lambda0, rule.clip, rule.correct) == (Strength.ADAPTIVE, 2.0, 1.0, True)
    assert (rule.reliability, rule.weigh) == (Reliability.BY_DELAY, Weigh.RATE_AND_MOMENTUM)


def test_all_options_are_read() -> None:
    options = read_options({"update": "dc-asgd-a", "lambda0": "0.5", "ps": "3", "max-delay": "0"})
    assert options.rule is not None
    assert (options.rule.lambda0, options.num_shards, options.max_delay) == (0.5, 3, 0)
    averaging = read_options({"update": "averaging", "average-every": "8", "outer": "diloco"})
    assert (averaging.rule, averaging.average_every, averaging.outer) == (None, 8, "diloco")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"max-delay": "-1"}, "--max-delay must be a whole number, 0 or more. Received: --max-delay -1"),
        ({"max-delay": "two"}, "--max-delay must be a number. Received: --max-delay two"),
        ({"ps": "0"}, "--ps must be a whole number, 1 or more. Received: --ps 0"),
        ({"update": "sgd"}, "--update must be one of"),
        ({"ddc": "clever"}, "--ddc must be one of thesis, robust"),
        ({"update": "asgd", "ddc": "robust"}, "--ddc goes with --update ddc-asgd"),
        ({"update": "asgd", "lambda0": "1"}, "--lambda0 goes with a rule that compensates delays"),
        ({"lambda0": "-1"}, "--lambda0 must be 0 or more"),
        ({"lambda0": "nan"}, "--lambda0 must be a number"),
        ({"q": "0"}, "--q must be more than 0"),
        ({"update": "dynsgd", "q": "3"}, "--q goes with --update ddc-asgd"),
        ({"outer": "diloco"}, "--outer goes with --update averaging"),
        ({"update": "averaging", "max-delay": "3"}, "--max-delay is about delayed gradients"),
        ({"update": "averaging", "outer": "mean"}, "--outer must be one of averaging, diloco"),
        ({"wire": "fp8"}, "--wire must be one of exact, fp16. Received: --wire fp8"),
        ({"update": "averaging", "wire": "fp16"}, "--wire fp16 is about parameter servers"),
        ({"colour": "red"}, "knows no option --colour"),
    ],
)
def test_a_wrong_option_is_refused_by_name(options: dict[str, str], expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_options(options)
    assert expected in str(caught.value)


def test_q_goes_with_the_optimizer() -> None:
    robust = make_rule("ddc-asgd")
    for momentum, q in ((0.5, 5.0), (0.9, pytest.approx(10.0)), (1.0, math.inf)):
        assert robust.wanted_q(momentum, normalises=True) == q
    assert robust.wanted_q(None, normalises=False) == 10.0
    assert robust.wanted_q(None, normalises=True) == math.inf
    # It mixes gradients, and weighs no rate.
    assert make_rule("ddc-asgd", "thesis").wanted_q(None, normalises=True) == 10.0
    assert make_rule("ddc-asgd", q=7.0).wanted_q(0.9, normalises=True) == 7.0
    assert make_rule("dynsgd").wanted_q(None, normalises=True) == 1.0


def test_reliability_of_a_gradient_without_delay_is_one() -> None:
    for update in ("asgd", "dc-asgd-c", "dc-asgd-a", "ddc-asgd", "dynsgd"):
        assert make_rule(update).rho(0, 4, 10.0) == 1.0
    assert make_rule("ddc-asgd").rho(10, 4, 10.0) == pytest.approx(0.5)
    assert make_rule("dynsgd").rho(3, 4, 1.0) == 0.25
    assert make_rule("dc-asgdk").rho(0, 4, 10.0) == 0.25
