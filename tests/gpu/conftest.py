"""Skips this folder on a machine without a GPU; at the end shows what was measured."""

from collections.abc import Callable

import pytest

from fdt.base.gpus import num_gpus


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not num_gpus():
        for item in items:
            if "tests/gpu/" in item.nodeid:
                item.add_marker(pytest.mark.skip(reason="this machine has no NVIDIA GPU"))


@pytest.fixture
def found(record_property: Callable[[str, object], None]) -> Callable[[str, str], None]:
    """Returns the function that a test calls with a name and what it has measured."""
    return record_property


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for reports in terminalreporter.stats.values():
        for report in reports:
            if "tests/gpu/" in getattr(report, "nodeid", "") and report.when == "call":
                for name, finding in report.user_properties:
                    terminalreporter.write_line(f"{name:28} {finding}")
