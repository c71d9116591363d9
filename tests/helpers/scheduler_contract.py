"""What every scheduler keeps to that can be asked for hosts; run on each of them, real."""

import dataclasses
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from fdt.base.config import Network, PlacingConfig
from fdt.errors import UsageError
from fdt.pool.reconciler import shared_folder, write
from fdt.pool.scheduling.request import HostRequest, Observation, Scheduler
from tests.helpers.waiting import wait_until

_LIMIT_S = 60.0


@pytest.fixture
def silent() -> Iterator[str]:
    """Where somebody listens and never answers, so that a host neither joins nor ends soon."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


class SchedulerContract:
    """Subclasses have the fixtures `scheduler` and `name`."""

    @pytest.fixture
    def asked(self, name: str, silent: str, tmp_path: Path) -> HostRequest:
        config = PlacingConfig(name, 0, 2, shared_folder(tmp_path))
        network = Network("lo", "127.0.0.1", "127.0.0.0/8")
        request = HostRequest.of(config, network, silent, "hosts", pool=f"fdt-{secrets.token_hex(3)}")
        return dataclasses.replace(request, name="contract-1")

    def test_a_host_runs_until_it_is_stopped(self, scheduler: Scheduler, asked: HostRequest) -> None:
        scheduler.check(asked)
        name = self._start(scheduler, asked)
        self._wait(scheduler, name, asked, lambda seen: not seen.waits and not seen.ended)
        scheduler.stop([name])
        self._wait(scheduler, name, asked, lambda seen: seen.ended)
        scheduler.stop([name])
        scheduler.sweep(asked.pool)

    def test_all_of_a_pool_are_swept_and_nobody_elses(self, scheduler: Scheduler, asked: HostRequest) -> None:
        second = dataclasses.replace(asked, name="contract-2")
        started = {self._start(scheduler, each): each for each in (asked, second)}
        assert len(started) == 2
        scheduler.sweep(asked.pool)
        for name, each in started.items():
            self._wait(scheduler, name, each, lambda seen: seen.ended)

    def test_what_no_node_has_is_refused_with_a_reason(self, scheduler: Scheduler, asked: HostRequest) -> None:
        larger = dataclasses.replace(asked, config=dataclasses.replace(asked.config, slots=640))
        with pytest.raises(UsageError) as refused:
            scheduler.check(larger)
        assert len(str(refused.value)) > 20

    def _start(self, scheduler: Scheduler, asked: HostRequest) -> str:
        write(scheduler.render(asked), asked.folder)
        return scheduler.start(asked)

    def _wait(self, scheduler: Scheduler, name: str, asked: HostRequest, holds: object) -> None:
        def seen() -> Observation:
            return scheduler.observe(asked.pool, {name: asked})[name]

        wait_until(lambda: holds(seen()), lambda: seen().reason, _LIMIT_S)  # type: ignore[operator]
