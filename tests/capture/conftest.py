"""What tests of data sets share."""

from collections.abc import Iterator

import pytest
import tensorflow as tf

from fdt.base.patch import Patches
from fdt.capture.rows import RowNumbers


@pytest.fixture
def row_numbers() -> Iterator[RowNumbers]:
    """Counts the iterators over shuffles, as in a script from its beginning on, where no seed is set."""
    patches, numbers = Patches(), RowNumbers()
    numbers.install(patches)
    tf.random.set_seed(None)
    yield numbers
    patches.undo()
    tf.random.set_seed(None)
