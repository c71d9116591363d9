"""Starts and ends a scheduler's jobs, in one thread, until their number is the number of hosts that the pool wants.

The pool's state gives the number. Joined hosts report to the pool themselves, so the scheduler is polled only while a
requested host has not joined.
"""

import contextlib
import dataclasses
import os
import shutil
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

from fdt.base import log
from fdt.base.config import Timing
from fdt.errors import FdtError, UsageError
from fdt.pool.scheduling.request import HostRequest, Observation, Rendering, Scheduler, SchedulerUnreachableError
from fdt.pool.state import events
from fdt.worker.processes import last_words

# After this many hosts in a row have ended without being able to serve a job, no more are requested.
_MAX_FAILED = 3
# The number of logs that are kept of hosts that ended before they joined.
_MAX_LOGS = 20


@dataclasses.dataclass
class _Asked:
    """A requested host.

    Attributes:
        request: The request to the scheduler.
        joined: Whether it is part of the pool.
        works: Whether it can serve jobs; see `events.HostWorks`.
        left_s: When it left the pool, by the monotonic clock; None if it has not.
    """

    request: HostRequest
    joined: bool = False
    works: bool = False
    left_s: float | None = None


class Reconciler:
    """The requested hosts of one pool. Only the reconciler's own thread calls the scheduler."""

    def __init__(
        self,
        scheduler: Scheduler,
        template: HostRequest,
        timing: Timing,
        post: Callable[[events.Event], None],
    ) -> None:
        """Makes the pool's folder on the shared file system.

        Args:
            scheduler: The scheduler that provides hosts.
            template: The hosts' common request; each host's copy has its own name, and the pool's folder.
            timing: `look_s`, `look_limit_s`, `ask_again_s`, `stop_s`, `rejoin_s` and `sweep_s` are used.
            post: Takes events for the pool's state, from any thread.

        Raises:
            UsageError: The folder cannot be made.
        """
        self._scheduler, self._timing, self._post = scheduler, timing, post
        self._folder = shared_folder(template.config.folder)
        self._template = dataclasses.replace(template, folder=self._folder)
        # Guards the fields below.
        self._lock = threading.Lock()
        self._wanted = self._num_asked = 0
        # Requests by the hosts' names, and by the scheduler's names for them.
        self._by_name: dict[str, _Asked] = {}
        self._asked: dict[str, _Asked] = {}
        # The number of hosts in a row that could not serve a job, joined or not, and why the last one ended.
        self._num_failed, self._failure = 0, ""
        self._said = ""
        self._wake, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="fdt-scheduler", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    # ---- for the pool, from any thread; nothing here blocks ----------------------------------------------------------

    def want(self, number: int) -> None:
        """Records how many hosts are wanted in all. A larger number resets the failure count: its cause may be fixed."""
        with self._lock:
            if number > self._wanted and self._num_failed >= _MAX_FAILED:
                self._num_failed = 0
            self._wanted = number
        self._wake.set()

    def joined(self, name: str) -> bool:
        """Records that a host has joined the pool; returns whether it was requested here."""
        with self._lock:
            asked = self._by_name.get(name)
            if asked is None or asked.joined:
                return False
            asked.joined, asked.left_s = True, None
            return True

    def works(self, name: str) -> None:
        """Records that a host can serve jobs."""
        with self._lock:
            if name in self._by_name:
                self._by_name[name].works, self._num_failed = True, 0

    def left(self, name: str, fault: str = "") -> None:
        """Records that a host has left the pool.

        Args:
            name: The name that it gave itself.
            fault: Why it left, in words; "" if it was given back.
        """
        with self._lock:
            asked = self._by_name.get(name)
            if asked is not None:
                asked.joined, asked.left_s = False, time.monotonic()
                if fault and not asked.works:
                    self._num_failed, self._failure = self._num_failed + 1, f"the last: {fault}."
        self._wake.set()

    # ---- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause_s = self._timing.look_s
        while not self._stop.is_set():
            refused = False
            try:
                changed, pending = self._settle()
                pause_s = self._timing.look_s if changed else min(2 * pause_s, self._timing.look_limit_s)
                wait_s = pause_s if pending else None
            except SchedulerUnreachableError as error:
                pause_s = wait_s = min(2 * pause_s, self._timing.look_limit_s)
                self._say(f"it does not answer ({error})")
            except Exception as error:  # any error: jobs that wait for hosts end with it, and it is logged
                if not isinstance(error, FdtError):
                    traceback.print_exc()
                refused, wait_s = True, self._refused(str(error) or type(error).__name__)
            if self._wake.wait(wait_s):
                pause_s = self._timing.look_s
            elif refused:
                self._try_again()
            self._wake.clear()

    def _settle(self) -> tuple[bool, bool]:
        """Compares the hosts with the wanted number once, and requests or withdraws some.

        Returns:
            Whether anything changed, and whether a requested host has not joined yet.
        """
        changed = self._look_after_left()
        changed |= self._look_after_waiting()
        with self._lock:
            surplus = sum(asked.left_s is None for asked in self._asked.values()) - self._wanted
            num_lost = sum(asked.left_s is not None for asked in self._asked.values())
            failure = self._failure if self._num_failed >= _MAX_FAILED else ""
        missing = -surplus - (num_lost if self._scheduler.restarts else 0)
        if missing > 0 and failure:
            raise UsageError(f"{_MAX_FAILED} hosts in a row could not serve a job; {failure}")
        for _ in range(missing):
            self._ask()
        if surplus > 0:
            self._withdraw(surplus)
        with self._lock:
            return changed or missing > 0 or surplus > 0, any(not asked.joined for asked in self._asked.values())

    def _look_after_left(self) -> bool:
        """Ends the scheduler's jobs of hosts that have left the pool, except jobs that wait for a restart."""
        with self._lock:
            left = {number: asked for number, asked in self._asked.items() if asked.left_s is not None}
        if not left:
            return False
        seen, changed = self._observe(left), False
        due_s = time.monotonic() - (self._timing.rejoin_s if self._scheduler.restarts else self._timing.stop_s)
        for number, asked in left.items():
            with self._lock:
                # It may have joined again while the scheduler answered.
                left_s = asked.left_s
                is_due = left_s is not None and left_s <= due_s
                if seen[number].waits and is_due:
                    # Requeued by the scheduler itself, after a node's failure or a preemption.
                    asked.left_s = None
            if left_s is None or seen[number].waits:
                continue
            if seen[number].ended or is_due:
                if not seen[number].ended:
                    self._scheduler.stop([number])
                self._forget(number)
                changed = True
        return changed

    def _look_after_waiting(self) -> bool:
        with self._lock:
            waiting = {n: asked for n, asked in self._asked.items() if not asked.joined and asked.left_s is None}
        if not waiting:
            self._say("")
            return False
        seen = self._observe(waiting)
        with self._lock:
            # Hosts may have joined and left while the scheduler answered.
            still = {n: asked for n, asked in waiting.items() if not asked.joined and asked.left_s is None}
        ended = [number for number in still if seen[number].ended]
        self._say(", ".join(sorted({seen[number].reason for number in still if not seen[number].ended})))
        for number in ended:
            self._forget(number, keeps_log=True)
        if ended:
            failure = _failure(still[ended[-1]].request, seen[ended[-1]])
            with self._lock:
                self._num_failed, self._failure = self._num_failed + len(ended), failure
        return bool(ended)

    def _observe(self, asked: Mapping[str, _Asked]) -> Mapping[str, Observation]:
        return self._scheduler.observe(self._template.pool, {number: each.request for number, each in asked.items()})

    def _ask(self) -> None:
        self._num_asked += 1
        name = f"{self._template.pool.removeprefix('fdt-')}-{self._num_asked}"
        request = dataclasses.replace(self._template, name=name)
        asked = _Asked(request)
        write(self._scheduler.render(request), self._folder)
        with self._lock:
            # Registered before the start, so that it is known when it joins.
            self._by_name[name] = asked
        try:
            number = self._scheduler.start(request)
        except BaseException:
            with self._lock:
                del self._by_name[name]
            raise
        with self._lock:
            self._asked[number] = asked

    def _withdraw(self, surplus: int) -> None:
        """Withdraws requests whose hosts have not joined, the newest first."""
        with self._lock:
            waiting = [n for n, asked in self._asked.items() if not asked.joined and asked.left_s is None]
        withdrawn = waiting[::-1][:surplus]
        self._scheduler.stop(withdrawn)
        for number in withdrawn:
            self._forget(number)

    def _forget(self, number: str, keeps_log: bool = False) -> None:
        with self._lock:
            request = self._asked.pop(number).request
            del self._by_name[request.name]
            known = {asked.request.name for asked in self._asked.values()}
        for path in self._folder.glob(f"{request.name}.*"):
            if not keeps_log or path.suffix != ".log":
                path.unlink(missing_ok=True)
        logs = sorted(self._folder.glob("*.log"), key=os.path.getmtime)
        for path in [path for path in logs if path.stem not in known][:-_MAX_LOGS]:
            path.unlink(missing_ok=True)

    def _try_again(self) -> None:
        with self._lock:
            self._num_failed = 0

    def _refused(self, reason: str) -> float:
        """Tells the pool why it gets no more hosts; returns the seconds until the next attempt."""
        self._post(events.HostsRefused(time.time(), reason))
        self._say(reason)
        return self._timing.ask_again_s

    def _say(self, reason: str) -> None:
        if reason != self._said:
            self._said = reason
            self._post(events.HostsWait(time.time(), reason))

    # ---- the end ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends all requested hosts, waits until the scheduler runs none of them, and removes the folder."""
        self._stop.set()
        self._wake.set()
        end_s = time.monotonic() + self._timing.sweep_s
        if self._thread.ident is not None:
            self._thread.join(self._timing.sweep_s)
        try:
            self._scheduler.sweep(self._template.pool)
            while not self._all_ended():
                if time.monotonic() > end_s:
                    raise SchedulerUnreachableError(f"hosts still run after {self._timing.sweep_s:g} s")
                self._stopping_pause()
        except (SchedulerUnreachableError, FdtError) as error:
            config = self._template.config
            line = f"hosts of {self._template.pool} may be left on {config.scheduler}; end them there. ({error})"
            log.notice(line)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _all_ended(self) -> bool:
        return all(each.ended for each in self._observe(self._asked).values())

    def _stopping_pause(self) -> None:
        threading.Event().wait(self._timing.look_s / 4)


def shared_folder(parent: Path) -> Path:
    """Makes a folder for a pool's files that only this user can open.

    Raises:
        UsageError: The folder cannot be made.
    """
    try:
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="fdt-hosts-", dir=parent))
    except OSError as error:
        raise UsageError(
            f"Cannot make a folder for the hosts' files: {error}. Name one on a file system that all hosts share with "
            f"--shared-folder. Received: {parent}"
        ) from error


def write(rendering: Rendering, folder: Path) -> None:
    """Writes files where hosts see them, each atomically: a host may be reading the previous version."""
    for file in rendering.files:
        partial = folder / f".{file.name}"
        with contextlib.suppress(FileNotFoundError):
            partial.unlink()
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, file.mode)
        with open(descriptor, "w", encoding="utf-8") as opened:
            opened.write(file.text)
        os.replace(partial, folder / file.name)


def _failure(request: HostRequest, seen: Observation) -> str:
    scheduler = request.config.scheduler
    start = f"the last ended before it joined, of which {scheduler} says: {seen.reason}."
    if seen.log is not None and not seen.log.exists():
        return (
            f"{start} It left no log in {seen.log.parent}: is that folder shared with the node? Name one that all hosts share "
            "with --shared-folder."
        )
    words = last_words(seen.log) if seen.log is not None else ""
    return f"{start} The end of its log: {words}" if words else start
