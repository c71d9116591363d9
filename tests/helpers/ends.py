"""Waiting for processes to be gone, children of this process or not, without reaping them."""

import os
import select
from collections.abc import Iterable

import psutil


def wait_gone(processes: Iterable[psutil.Process], limit_s: float = 20.0) -> None:
    """Waits until all have ended; fails after `limit_s` each."""
    for process in processes:
        try:
            descriptor = os.pidfd_open(process.pid)
        except ProcessLookupError:
            continue
        try:
            # By its descriptor, unlike its number, a process cannot be taken for another.
            assert select.select([descriptor], [], [], limit_s)[0], f"{process} still runs"
        finally:
            os.close(descriptor)
