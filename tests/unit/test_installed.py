"""What is said where a pool cannot be: before anything starts."""

import importlib.util

import pytest

from fdt.base import horovod_record, installed
from fdt.errors import UsageError


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Packages that this environment does not have."""
    missing: set[str] = set()
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in missing else found(name))
    return missing


def test_what_is_installed_is_not_asked_for(without: set[str]) -> None:
    without.add("horovod")
    installed.require_pool(("async",), 4)
    installed.require_pool((), 0)


def test_several_synchronous_workers_need_horovod_and_one_does_not(without: set[str]) -> None:
    without.add("horovod")
    installed.require_pool(("async", "sync"), 1)
    with pytest.raises(UsageError, match=r"needs Horovod .*Horovod is not installed.*`fdt setup` builds it"):
        installed.require_pool(("async", "sync"), 2)


def test_a_pool_needs_its_extra(without: set[str]) -> None:
    without |= {"psutil", "grpc_health"}
    with pytest.raises(UsageError, match=r"pip install 'fdt\[pool\]'. Missing: psutil, grpc_health"):
        installed.require_pool((), 0)


def test_all_of_it_is_here() -> None:
    installed.require_pool(("async", "sync"), 2)
    assert horovod_record.complaint() is None
