"""What `--relax` takes."""

import pytest

from fdt.base.relaxation import BATCH_NORM, RANDOM, relaxed
from fdt.errors import UsageError
from hfdt.launch import HorovodLauncher


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, set()), ({"relax": "random"}, {RANDOM}), ({"relax": "batch-norm,random"}, {BATCH_NORM, RANDOM})],
)
def test_kinds(given: dict[str, str], expected: set[str]) -> None:
    assert relaxed(given) == expected
    HorovodLauncher().check(given)


@pytest.mark.parametrize("given", ["", "dropout", "random,dropout"])
def test_what_there_is_not(given: str) -> None:
    with pytest.raises(UsageError, match=f"--relax takes batch-norm or random, .* Received: --relax {given}"):
        HorovodLauncher().check({"relax": given})
