"""Marks every test with the name of its directory (`-m unit`, `-m "not fidelity"`); a pool for those that do not harm it."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.pool import Pool, serve

_TESTS = Path(__file__).parent
_GROUPS = {
    "unit": "one part, no processes, no network",
    "division": "a divided step beside the undivided one, workers simulated in one process",
    "contract": "every implementation of a Protocol",
    "fidelity": "a script under fdt gives what plain python gives (minutes)",
    "integration": "several processes (minutes)",
    "fuzz": "messages that nobody would send",
    "faults": "broken parts (minutes)",
    "schedulers": "hosts that a scheduler brings (minutes)",
}


# What `make test-all` runs besides: what repeats, at greater length or in another mode, what another test shows.
_THOROUGH = "thorough"


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Who runs the tests in the background of a shell has it ignored, and all that they start would inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name, meaning in {**_GROUPS, _THOROUGH: "run by make test-all alone, or by -m thorough"}.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not os.environ.get("FDT_ALL_TESTS") and _THOROUGH not in config.option.markexpr:
        left_out = [item for item in items if item.get_closest_marker(_THOROUGH)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    for item in items:
        if not item.path.is_relative_to(_TESTS):
            continue
        group = item.path.relative_to(_TESTS).parts[0]
        if group in _GROUPS:
            item.add_marker(group)


@pytest.fixture(scope="session")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """Four workers, both modes, a token. Tests share it, and each finds it as the one before left it."""
    with serve(tmp_path_factory.mktemp("pool"), num_workers=4, mode="both") as running:
        yield running
