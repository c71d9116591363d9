"""Programs are looked at in a process of its own, which has limits and is there for the next one."""

import concurrent.futures
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fdt.errors import ProgramRefusedError, ProtocolError
from fdt.pool import examiner
from fdt.pool.examiner import Examiner
from fdt.program import admission
from fdt.transport.blob_store import BlobStore
from fdt.transport.blobs import one_time
from fdt.transport.wire import varint
from fdt.v1 import blobs_pb2, graph_pb2, program_pb2
from tests.helpers.blobs import write
from tests.helpers.ends import wait_gone
from tests.helpers.processes import PYTHON, background

LIMIT_S = 30.0


def program(op: str, num_nodes: int = 1) -> bytes:
    """Returns a program of many nodes, without making each."""
    nodes = graph_pb2.GraphDef(node=[graph_pb2.NodeDef(name="n", op=op)]).SerializeToString() * num_nodes
    meta_graph = b"\x12" + varint(len(nodes)) + nodes
    return program_pb2.StepProgram(step=program_pb2.Function(meta_graph=meta_graph)).SerializeToString()


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs")


@pytest.fixture
def looking() -> Iterator[Examiner]:
    examiner = Examiner()
    yield examiner
    examiner.close()


def process_of(examiner: Examiner) -> psutil.Process:
    process = examiner._process
    assert process is not None
    return psutil.Process(process.pid)


def test_answers(looking: Examiner, store: BlobStore) -> None:
    looking.examine(store, write(store, program("MatMul")))
    with pytest.raises(ProgramRefusedError, match=r"'WriteFile' \(node 'n' in the graph\): it reads or writes files"):
        looking.examine(store, write(store, program("WriteFile")))
    with pytest.raises(ProtocolError, match="StepProgram"):
        looking.examine(store, write(store, b"\xff"))
    first = process_of(looking)
    looking.examine(store, write(store, program("MatMul", 10_000)))
    assert process_of(looking) == first, "an ordinary program costs no new process"


def test_what_an_operator_admits(store: BlobStore) -> None:
    looking = Examiner(admitted=("DecodeJpeg",))
    try:
        looking.examine(store, write(store, program("DecodeJpeg")))
        with pytest.raises(ProgramRefusedError, match="--admit DecodePng"):
            looking.examine(store, write(store, program("DecodePng")))
    finally:
        looking.close()


def test_does_not_import_tensorflow(looking: Examiner, store: BlobStore) -> None:
    looking.examine(store, write(store, program("MatMul")))
    mapped = {Path(each.path).name for each in process_of(looking).memory_maps()}
    assert not [name for name in mapped if "tensorflow" in name]
    assert process_of(looking).memory_info().rss < 100 << 20


def test_a_program_may_not_change_after_it_was_looked_at(looking: Examiner, store: BlobStore) -> None:
    """A blob that serves once is named by chance: whoever sent it may send another under its name."""
    content = program("MatMul")
    ref = one_time(len(content))
    store.put(ref, [content])
    with pytest.raises(ProtocolError, match="SHA-256"):
        looking.examine(store, ref)


def test_a_blob_that_is_not_there(looking: Examiner, store: BlobStore) -> None:
    with pytest.raises(ProtocolError, match="cannot read"):
        looking.examine(store, blobs_pb2.BlobRef(digest=bytes(32), size_bytes=1))
    looking.examine(store, write(store, program("MatMul")))


def test_six_million_nodes_leave_nothing_behind(looking: Examiner, store: BlobStore) -> None:
    ref = write(store, program("NoOp", 6_000_000))
    before = psutil.Process().memory_info().rss
    with pytest.raises(ProgramRefusedError, match=f"6,000,000 nodes.*{admission.MAX_NODES:,}"):
        looking.examine(store, ref)
    assert psutil.Process().memory_info().rss - before < 50 << 20
    looking.examine(store, write(store, program("MatMul")))
    assert process_of(looking).memory_info().rss < 100 << 20


def test_more_memory_than_there_is(store: BlobStore) -> None:
    """Forty million nodes are 80 MB as they come, and many times that when they are read."""
    raw = b"\x0a\x00" * 40_000_000
    meta_graph = b"\x12" + varint(len(raw)) + raw
    ref = write(store, program_pb2.StepProgram(step=program_pb2.Function(meta_graph=meta_graph)).SerializeToString())
    looking = Examiner()
    try:
        with pytest.raises((ProgramRefusedError, ProtocolError)):
            looking.examine(store, ref)
        looking.examine(store, write(store, program("MatMul")))
    finally:
        looking.close()


def test_more_time_than_there_is(store: BlobStore) -> None:
    looking = Examiner(limit_s=0.0)
    try:
        with pytest.raises(ProgramRefusedError, match=f"more than 0 s or {examiner.MEMORY_BYTES >> 20} MiB"):
            looking.examine(store, write(store, program("MatMul")))
    finally:
        looking.close()


def test_a_process_that_was_killed_is_replaced(looking: Examiner, store: BlobStore) -> None:
    ref = write(store, program("MatMul"))
    looking.examine(store, ref)
    process = process_of(looking)
    os.kill(process.pid, signal.SIGKILL)
    # Not reaped: that is the examiner's.
    assert os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT) is not None
    looking.examine(store, ref)
    assert process_of(looking) != process


def test_many_at_once(looking: Examiner, store: BlobStore) -> None:
    good, bad = write(store, program("MatMul")), write(store, program("PyFunc"))
    looking.examine(store, good)
    first = process_of(looking)
    with concurrent.futures.ThreadPoolExecutor(20) as threads:
        asked = [threads.submit(looking.examine, store, ref) for ref in (good, bad) * 20]
        errors = [each.exception(LIMIT_S) for each in asked]
    assert [type(error) for error in errors] == [type(None), ProgramRefusedError] * 20
    assert process_of(looking) == first, "ordinary programs cost no new process, however large this one is"


def test_ends_with_its_pool(store: BlobStore) -> None:
    looking = Examiner()
    looking.examine(store, write(store, program("MatMul")))
    process = process_of(looking)
    looking.close()
    assert not process.is_running()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("fdt-examiner")]


def test_ends_with_a_pool_that_is_killed(tmp_path: Path) -> None:
    script = (
        "import time\nfrom fdt.pool.examiner import Examiner\nlooking = Examiner()\n"
        "print('pid', looking._thread.submit(looking._running).result().pid, flush=True)\ntime.sleep(60)\n"
    )
    with background([PYTHON, "-c", script], cwd=tmp_path) as pool:
        child = psutil.Process(int(pool.wait_for_line("pid ", limit_s=LIMIT_S).split()[-1]))
        os.kill(pool.pid, signal.SIGKILL)
        wait_gone([child], LIMIT_S)
