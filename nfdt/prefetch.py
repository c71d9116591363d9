"""What a worker computes with next, on its way to it while it still computes: `--prefetch`."""

import threading
from collections.abc import Callable
from concurrent.futures import Future

from nfdt.step import Pulled


class Prefetch:
    """One worker's. A link is used both ways at once, whatever rhythm the workers fall into; delays are one step longer."""

    def __init__(self) -> None:
        """Nothing is on its way."""
        self._next: Future[Pulled] | None = None

    def take(self, fetch: Callable[[], Pulled]) -> Pulled:
        """Returns what has been fetched, as soon as it is there, and has the next fetched. One call at a time.

        Args:
            fetch: Called in a thread of its own.
        """
        taken = (self._next or _begun(fetch)).result()
        self._next = _begun(fetch)
        return taken

    def forget(self) -> None:
        """What is on its way is not wanted: parameters have been set. Not while a step is made."""
        self._next = None


def _begun(fetch: Callable[[], Pulled]) -> "Future[Pulled]":
    future: Future[Pulled] = Future()

    def run() -> None:
        try:
            future.set_result(fetch())
        except BaseException as error:  # whoever waits must hear of it
            future.set_exception(error)

    # The process may end before what is on its way is there.
    threading.Thread(target=run, name="fdt-prefetch", daemon=True).start()
    return future
