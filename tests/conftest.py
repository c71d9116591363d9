"""Marks every test with the name of its directory (`-m unit`, `-m "not fidelity"`)."""

from pathlib import Path

import pytest

_TESTS = Path(__file__).parent
_GROUPS = {
    "unit": "one part, no processes, no network",
    "division": "a divided step beside the undivided one, workers simulated in one process",
    "contract": "every implementation of a Protocol",
    "fidelity": "a script under fdt gives what plain python gives (minutes)",
    "integration": "several processes (minutes)",
    "fuzz": "messages that nobody would send",
    "faults": "bad input and broken parts (minutes)",
}


def pytest_configure(config: pytest.Config) -> None:
    for name, meaning in _GROUPS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not item.path.is_relative_to(_TESTS):
            continue
        group = item.path.relative_to(_TESTS).parts[0]
        if group in _GROUPS:
            item.add_marker(group)
