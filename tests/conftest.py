"""Marks every test with the name of its directory (`-m unit`, `-m "not fidelity"`); a pool for those that do not harm it."""

import collections
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import hypothesis
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


# What `make test-all` runs besides: what repeats, at greater length or in another mode, what another test shows. A kind of
# defect that one test alone can find stays in `make test`; see `tests.helpers.thorough`.
_THOROUGH = "thorough"

# Files of some minutes, the longest first: one that began last would have the other process wait. The run prints how long
# they took.
_LONG = (
    "fidelity/test_exactness.py",
    "division/test_parts.py",
    "fidelity/test_validation.py",
    "docs/test_tutorials.py",
    "fidelity/test_environment.py",
    "integration/test_parts.py",
    "servers/test_cut.py",
    "fidelity/test_keras_2.py",
    "fidelity/test_asynchronous.py",
    "integration/test_distribution.py",
    "servers/test_one_pass.py",
    "servers/test_step.py",
    "integration/test_parameter_server_hosts.py",
    "division/test_varying.py",
    "integration/test_examples.py",
    "division/test_steps.py",
    "servers/test_table_rows.py",
    "faults/test_survival.py",
    "integration/test_verify_check.py",
    "servers/test_compiled.py",
    "servers/test_update_rules.py",
    "integration/test_notebook.py",
    "division/test_models.py",
)
_SHOWN_FILES = 30


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Who runs the tests in the background of a shell has it ignored, and all that they start would inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # How long an example takes says nothing on a busy machine.
    hypothesis.settings.register_profile("fdt", deadline=None)
    hypothesis.settings.load_profile("fdt")
    for name, meaning in {**_GROUPS, _THOROUGH: "run by make test-all alone, or by -m thorough"}.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not os.environ.get("FDT_ALL_TESTS") and _THOROUGH not in config.option.markexpr:
        left_out = [item for item in items if item.get_closest_marker(_THOROUGH)]
        config.hook.pytest_deselected(items=left_out)
        left = set(left_out)
        items[:] = [item for item in items if item not in left]
    places = {_TESTS / name: place for place, name in enumerate(_LONG)}
    items.sort(key=lambda item: places.get(item.path, len(_LONG)))
    for item in items:
        if not item.path.is_relative_to(_TESTS):
            continue
        group = item.path.relative_to(_TESTS).parts[0]
        if group in _GROUPS:
            item.add_marker(group)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says where the time went: by folder, and of the files that took longest."""
    by_folder, by_file = collections.Counter[str](), collections.Counter[str]()
    for report in (each for reports in terminalreporter.stats.values() for each in reports):
        if isinstance(report, pytest.TestReport):
            file = Path(report.nodeid.partition("::")[0])
            by_folder[str(file.parent)] += report.duration
            by_file[str(file)] += report.duration
    if sum(by_folder.values()) < 60:
        return
    terminalreporter.section("seconds by folder, and of the longest files")
    for name, seconds in (*by_folder.most_common(), *by_file.most_common(_SHOWN_FILES)):
        terminalreporter.write_line(f"{seconds:8.1f}  {name}")


@pytest.fixture(scope="session")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """Four workers, both modes, a token. Tests share it, and each finds it as the one before left it."""
    with serve(tmp_path_factory.mktemp("pool"), num_workers=4, mode="both") as running:
        yield running


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a folder of images for each class; a test leaves it as it found it."""
    # Imported late: it imports TensorFlow.
    from tests.fidelity.scripts import rows_of_files

    folder = tmp_path_factory.mktemp("made") / "images"
    rows_of_files.make_images(folder)
    return folder
