"""When two trainings agree: but for rounding, be it magnified."""

from collections.abc import Mapping

import numpy as np
import pytest

from fdt.verification import Verification, distance, nudged

HERE = {"kernel": np.ones(3, np.float32), "bias": np.zeros(2, np.float32)}


def off(by: float) -> Mapping[str, np.ndarray]:
    return {**HERE, "kernel": HERE["kernel"] + np.float32(by)}


def test_rounding_is_not_asked_for_within_the_tolerance() -> None:
    verification = Verification(num_steps=1, tolerance=1e-4)

    def never() -> Mapping[str, np.ndarray]:
        raise AssertionError

    verification.add((0.5, 0.5), HERE, off(1e-6), never)
    assert verification.passed
    assert "within the tolerance" in verification.conclusion()[0]


@pytest.mark.parametrize(("rounding", "passed"), [(1e-7, False), (4e-4, False), (2e-3, True), (0.5, True)])
def test_a_difference_is_rounding_if_rounding_makes_as_much(rounding: float, passed: bool) -> None:
    verification = Verification(num_steps=2, tolerance=1e-4)
    verification.add((0.5, 0.5), HERE, HERE, lambda: HERE)
    line = verification.add((0.5, 0.5), HERE, off(1e-2), lambda: off(rounding))
    assert "largest difference 1.0e-02 (kernel); weights off by their last digit" in line
    assert verification.passed == passed
    told = " ".join(verification.conclusion())
    assert ("that is rounding" in told) == passed
    assert ("it arose in step 2" in told) != passed


def test_a_loss_may_differ_as_its_weights_do() -> None:
    verification = Verification(num_steps=1, tolerance=1e-4)
    verification.add((0.5, 0.6), HERE, HERE, lambda: HERE)
    assert not verification.passed


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
