"""Skips this folder on a machine without a GPU; at the end shows what was measured."""

from collections.abc import Iterator

import pytest

from fdt.base.gpus import num_gpus

# Name and finding of each measurement.
_FOUND: list[tuple[str, str]] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not num_gpus():
        for item in items:
            if "tests/gpu/" in item.nodeid:
                item.add_marker(pytest.mark.skip(reason="this machine has no NVIDIA GPU"))


@pytest.fixture
def found() -> Iterator[list[tuple[str, str]]]:
    """Returns the list to which a test adds what it has measured."""
    yield _FOUND


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for name, finding in _FOUND:
        terminalreporter.write_line(f"{name:34} {finding}")
