"""Redirects the output of a script that is only checked, to keep it out of the verdict on standard output."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TextIO


@contextlib.contextmanager
def output_aside() -> Iterator[TextIO]:
    """Sends all output to standard error within the context, that of C code and child processes too.

    Yields:
        The former standard output, for the verdict.
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
