"""Blobs that are taken from a worker's folder while the worker ends."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fdt.base.config import Timing
from fdt.errors import ProtocolError
from fdt.pool.hosts import OwnHost
from fdt.pool.session_blobs import SessionBlobs
from fdt.transport.blob_store import BlobStore
from fdt.transport.blobs import one_time
from fdt.worker import processes
from fdt.worker.processes import Processes

_WORKER = "job-0"


@pytest.fixture
def there(tmp_path: Path) -> SimpleNamespace:
    """A pool's store, the folder of one worker of its machine, and a blob that the worker has written."""
    ended: list[str] = []
    own = Processes(lambda name, *_: ended.append(name), tmp_path / "pool", Timing(), walls=False)
    store = BlobStore(tmp_path / "store")
    own.folder(_WORKER).mkdir(parents=True)
    ref = one_time(4)
    BlobStore(own.folder(_WORKER)).add(ref, [b"blob"])
    workers: Any = SimpleNamespace(host_of=lambda _: object.__new__(OwnHost))
    hosts: Any = SimpleNamespace()
    blobs = SessionBlobs(store, own, hosts, workers, most=10)
    return SimpleNamespace(processes=own, store=store, blobs=blobs, ref=ref, ended=ended)


def test_a_blob_of_a_running_worker_is_taken(there: SimpleNamespace) -> None:
    there.blobs.adopt(_WORKER, [there.ref], "")
    assert there.store.has(there.ref)
    with pytest.raises(ProtocolError, match="not in its folder"):
        there.blobs.adopt(_WORKER, [one_time(4)], "")


def test_a_worker_that_ends_meanwhile_is_no_liar(there: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its blob is looked for while its folder is being removed, file by file."""
    remove = shutil.rmtree

    def removed(folder: Path, **options: Any) -> None:
        for file in folder.iterdir():
            file.unlink()
        there.blobs.adopt(_WORKER, [there.ref], "")
        remove(folder, **options)

    monkeypatch.setattr(processes.shutil, "rmtree", removed)
    there.processes._ended(_WORKER, 0, "")
    there.blobs.adopt(_WORKER, [there.ref], "")
    assert there.ended == [_WORKER]
    assert not there.store.has(there.ref)
    assert not list(there.processes.folder(_WORKER).parent.iterdir())
