"""Redirects what a script prints while it is only looked at: beside the verdict, not into it."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TextIO


@contextlib.contextmanager
def output_aside() -> Iterator[TextIO]:
    """Within it what is printed, by whatever means, goes to standard error.

    Yields:
        What standard output was, for the verdict.
    """
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    with open(kept, "w", encoding=sys.stdout.encoding, errors="backslashreplace") as verdict:
        try:
            yield verdict
        finally:
            with contextlib.suppress(OSError, ValueError):
                # The script may have closed it.
                sys.stdout.flush()
            verdict.flush()
            os.dup2(verdict.fileno(), 1)
