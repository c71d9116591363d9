"""A pool for the tests that do not harm it: they share it, and each finds it as the one before left it."""

from collections.abc import Iterator

import pytest

from tests.helpers.pool import Pool, serve


@pytest.fixture(scope="package")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """Two workers, a token."""
    with serve(tmp_path_factory.mktemp("pool"), num_workers=2) as running:
        yield running
