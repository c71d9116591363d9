"""A signal that the kernel gives to a thread of its own choice is handled, though the main thread waits."""

import queue
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from fdt.base import main_thread


@pytest.fixture
def another_thread() -> Iterator[int]:
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    assert thread.ident is not None
    yield thread.ident
    ended.set()
    thread.join()


def handled(thread: int, end: Callable[[], None], wait: Callable[[], object]) -> bool:
    """Waits until a signal to a thread has run a handler, which ends the wait; returns whether it did within 30 s."""
    ran: list[int] = []
    in_time: list[bool] = []

    def give_up() -> None:
        in_time.append(bool(ran))
        end()

    too_late = threading.Timer(30.0, give_up)

    def handler(number: int, _: object) -> None:
        ran.append(number)
        end()

    before = signal.signal(signal.SIGUSR1, handler)
    sent = threading.Timer(0.1, signal.pthread_kill, (thread, signal.SIGUSR1))
    try:
        too_late.start()
        sent.start()
        wait()
        return bool(ran) and False not in in_time
    finally:
        too_late.cancel()
        sent.join()
        signal.signal(signal.SIGUSR1, before)


def test_a_signal_to_another_thread_ends_the_wait_for_an_event(another_thread: int) -> None:
    event = threading.Event()
    assert handled(another_thread, event.set, lambda: main_thread.wait(event))


def test_a_signal_to_another_thread_ends_the_wait_for_an_item(another_thread: int) -> None:
    items: queue.SimpleQueue[int] = queue.SimpleQueue()
    assert handled(another_thread, lambda: items.put(1), lambda: main_thread.take(items))
