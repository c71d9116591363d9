"""Redirects the output of a script that is only checked, so that standard output has the verdict alone."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TextIO


@contextlib.contextmanager
def output_aside() -> Iterator[TextIO]:
    """Sends all output within the context to standard error, including that of C code and child processes.

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
                # The script may have closed standard output.
                sys.stdout.flush()
            verdict.flush()
            os.dup2(verdict.fileno(), 1)
