"""What is said where a pool cannot be: before anything starts."""

import importlib.util

import pytest

from fdt.base import installed
from fdt.errors import UsageError


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Packages that this environment does not have."""
    missing: set[str] = set()
    monkeypatch.setattr(installed.importlib.util, "find_spec", lambda name: None if name in missing else name)
    return missing


def test_what_is_installed_is_not_asked_for(without: set[str]) -> None:
    without.add("horovod")
    installed.require_pool(("async",))
    installed.require_pool(())


def test_synchronous_workers_need_horovod(without: set[str]) -> None:
    without.add("horovod")
    with pytest.raises(UsageError, match=r"--mode sync needs horovod .*`fdt setup` builds it"):
        installed.require_pool(("async", "sync"))


def test_a_pool_needs_its_extra(without: set[str]) -> None:
    without |= {"psutil", "grpc_health"}
    with pytest.raises(UsageError, match=r"pip install 'fdt\[pool\]'. Missing: psutil, grpc_health"):
        installed.require_pool(())


def test_all_of_it_is_here() -> None:
    assert all(importlib.util.find_spec(name) for name in (*installed._POOL, "horovod"))
