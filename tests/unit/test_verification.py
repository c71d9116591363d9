"""When two trainings agree: but for rounding, which is shown, and never so that an error would pass."""

from collections.abc import Callable

import numpy as np
import pytest

from fdt.client.verification import InDouble, MadeTwice, Values, Verdict, Verification, distance, nudged

BEFORE = {"kernel": np.ones(3, np.float32), "bias": np.zeros(2, np.float32)}
# A step changes the kernel by 1, at most.
HERE = {**BEFORE, "kernel": np.array([1.5, 2.0, 1.0], np.float32)}


def off(by: float) -> Values:
    return {**HERE, "kernel": HERE["kernel"] + np.float32(by)}


def made(on_pool: Values) -> MadeTwice:
    return MadeTwice(BEFORE, HERE, on_pool, {"kernel", "bias"})


def never() -> Values:
    raise AssertionError


def test_rounding_is_not_asked_for_within_the_tolerance() -> None:
    verification = Verification(num_steps=1, tolerance=1e-4)
    verification.add((0.5, 0.5), made(off(1e-6)), never)
    verdict, lines = verification.conclusion(None)
    assert verdict is Verdict.AGREES
    assert "within the tolerance" in lines[0]


@pytest.mark.parametrize(
    ("difference", "rounding", "verdict"),
    [
        (4e-4, 1e-4, Verdict.AGREES),
        (5e-4, 1e-5, Verdict.UNPROVEN),
        # Rounding may make as much, but so may an error.
        (6.4e-2, 7.1e-2, Verdict.UNPROVEN),
        (1e-3, 5e-3, Verdict.UNPROVEN),
        (1e-2, 1e-7, Verdict.DIFFERS),
    ],
)
def test_what_rounding_on_this_machine_shows(difference: float, rounding: float, verdict: Verdict) -> None:
    verification = Verification(num_steps=2, tolerance=1e-4)
    verification.add((0.5, 0.5), made(HERE), never)
    line = verification.add((0.5, 0.5), made(off(difference)), lambda: off(rounding))
    assert f"largest difference {difference:.1e} (kernel); weights off by their last digit" in line
    found, lines = verification.conclusion(None)
    assert found is verdict
    told = " ".join(lines)
    assert ("the difference is rounding" in told) == (verdict is Verdict.AGREES)
    assert ("it arose in step 2" in told) == (verdict is not Verdict.AGREES)
    assert ("please report" in told) == (verdict is Verdict.DIFFERS)
    assert ("not proven" in told) == (verdict is Verdict.UNPROVEN)


@pytest.mark.parametrize(("difference", "verdict"), [(1e-12, Verdict.AGREES), (1e-3, Verdict.DIFFERS)])
def test_double_precision_tells_an_error_from_rounding(difference: float, verdict: Verdict) -> None:
    in_double = Verification(num_steps=1, tolerance=1e-4, in_double=True)
    before, here = ({name: value.astype(np.float64) for name, value in v.items()} for v in (BEFORE, HERE))
    there = {**here, "kernel": here["kernel"] + difference}
    in_double.add(None, MadeTwice(before, here, there, {"kernel"}), lambda: here)
    single = Verification(num_steps=1, tolerance=1e-4)
    single.add(None, made(off(6.4e-2)), lambda: off(7.1e-2))
    assert single.conclusion(in_double.shown_in_double(1))[0] is verdict
    # Not by fewer steps, nor by weights that stayed as they were.
    assert in_double.shown_in_double(2).verdict is Verdict.UNPROVEN
    not_double = Verification(num_steps=1, tolerance=1e-4, in_double=True)
    not_double.add(None, made(HERE), never)
    assert "precision of bias" in not_double.shown_in_double(1).line


def test_no_double_precision_leaves_what_single_precision_shows() -> None:
    verification = Verification(num_steps=1, tolerance=1e-4)
    verification.add(None, made(off(6.4e-2)), lambda: off(7.1e-2))
    verdict, lines = verification.conclusion(InDouble(Verdict.UNPROVEN, "the script does not run: TypeError"))
    assert verdict is Verdict.UNPROVEN and verdict.value not in (0, 1, 2)
    assert "in double precision: the script does not run: TypeError" in lines


def sgd(rate: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda gradient: -np.float32(rate) * gradient


def adam(rate: float) -> Callable[[np.ndarray], np.ndarray]:
    """The update of the second step, whose first had a gradient of its own."""
    first = np.linspace(-1, 1, 80, dtype=np.float32).reshape(20, 4)

    def update(gradient: np.ndarray) -> np.ndarray:
        mean, square = 0.09 * first + 0.1 * gradient, 0.000999 * first**2 + 0.001 * gradient**2
        return (-rate * (mean / 0.19) / (np.sqrt(square / 0.001999) + 1e-7)).astype(np.float32)

    return update


@pytest.mark.parametrize("rate", [0.1, 1e-2, 1e-4])
@pytest.mark.parametrize("optimizer", [sgd, adam])
@pytest.mark.parametrize("error", [0.0, 1e-3, 1e-2])
def test_one_workers_wrong_gradient_does_not_pass(
    error: float, optimizer: Callable[[float], Callable[[np.ndarray], np.ndarray]], rate: float
) -> None:
    random = np.random.default_rng(0)
    x, y = random.random((32, 20), np.float32), random.random((32, 4), np.float32)
    kernel = random.standard_normal((20, 4), np.float32)

    def gradient(kernel: np.ndarray, rows: slice) -> np.ndarray:
        return x[rows].T @ (x[rows] @ kernel - y[rows]) / np.float32(len(x))

    def after(kernel: np.ndarray, *gradients: np.ndarray) -> Values:
        return {"kernel": kernel + optimizer(rate)(sum(gradients, np.zeros_like(kernel)))}

    whole, first, second = (gradient(kernel, rows) for rows in (slice(None), slice(16), slice(16, None)))
    there = after(kernel, first, second * np.float32(1 + error))
    other = nudged(kernel)
    verification = Verification(num_steps=1, tolerance=1e-4)
    step = MadeTwice({"kernel": kernel}, after(kernel, whole), there, {"kernel"})
    verification.add((0.5, 0.5), step, lambda: after(other, gradient(other, slice(None))))
    assert (verification.conclusion(None)[0] is Verdict.AGREES) == (error == 0.0)


def test_a_gradient_that_is_rounding_alone_is_no_difference() -> None:
    # As of a bias in front of a BatchNormalization.
    before = {"kernel": np.ones(2, np.float32), "bias": np.zeros(2, np.float32)}
    here, there = ({"kernel": np.full(2, 0.9, np.float32), "bias": np.full(2, b, np.float32)} for b in (1e-9, -3e-9))
    verification = Verification(num_steps=1, tolerance=1e-4)
    verification.add(None, MadeTwice(before, here, there, {"kernel", "bias"}), never)
    assert verification.conclusion(None)[0] is Verdict.AGREES


def test_a_loss_may_differ_as_its_weights_do() -> None:
    verification = Verification(num_steps=1, tolerance=1e-4)
    verification.add((0.5, 0.6), made(HERE), lambda: HERE)
    assert verification.conclusion(None)[0] is Verdict.DIFFERS


def test_every_type_is_compared_as_what_it_is() -> None:
    assert distance(np.array([1 + 1j]), np.array([1 + 3j])) == pytest.approx(2 / abs(1 + 1j))
    assert distance(np.array(1_000_000), np.array(1_000_001)) == float("inf")
    assert distance(np.array([b"a"]), np.array([b"a"])) == 0.0
    assert distance(np.array([np.nan]), np.array([np.nan])) == 0.0
    assert distance(np.array([np.nan]), np.array([1.0])) == float("inf")


def test_numbers_are_off_by_their_last_digit() -> None:
    value = np.array([1.0, -2.5, 0.0, 1e30], np.float32)
    found = nudged(value)
    assert found.dtype == value.dtype
    np.testing.assert_allclose(found, value, rtol=2.5e-7)
    assert list(found != value) == [True, True, False, True]
    np.testing.assert_array_equal(nudged(np.arange(3)), np.arange(3))
    both = nudged(np.array([[1 + 2j]], np.complex64))
    assert both.shape == (1, 1) and both.real != 1 and both.imag != 2
    np.testing.assert_allclose(both, 1 + 2j, rtol=2.5e-7)


def test_imaginary_parts_and_strings_differ_too() -> None:
    assert distance(np.array([1 + 1j]), np.array([1 + 2j])) == pytest.approx(1 / np.sqrt(2))
    text = np.array([b"one", b"two"], object)
    assert distance(text, np.array([b"one", b"two"], object)) == 0.0
    assert distance(text, np.array([b"one", b"six"], object)) == np.inf
