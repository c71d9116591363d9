"""Data of any size: in messages that stay small, through a store that is left as it was found."""

import itertools
import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from fdt.base.config import RunConfig
from fdt.client.job import ROWS_BYTES, Job, gathered
from fdt.pool import relay
from fdt.transport import wire
from fdt.transport.blobs import INLINE_BYTES, one_time
from fdt.v1 import job_pb2, program_pb2
from tests.helpers.pool import serve
from tests.helpers.processes import Finished
from tests.helpers.thorough import some_of
from tests.helpers.toy_engine import ROOT
from tests.helpers.warm import run_fdt
from tests.integration.test_pool import TIMING, Pool

# Of gRPC's 4 MiB.
MESSAGE_BYTES = 3 << 19
_LIMIT_S = 240.0
_SIZES = [8, INLINE_BYTES - 8, INLINE_BYTES, INLINE_BYTES + 8, 4 << 20, 40_000_000]


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        pool = Pool()
        yield pool
        pool.close()


@pytest.fixture
def largest(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all messages of jobs that the pool reads and writes from here on."""
    sizes: list[int] = []
    put, decode = relay.Outbox.put, wire.decode

    def noted_put(self: relay.Outbox, raw: bytes) -> None:
        sizes.append(len(raw))
        put(self, raw)

    def noted_decode(message: type, raw: bytes) -> object:
        # A program is read out of its blob.
        if message is not program_pb2.StepProgram:
            sizes.append(len(raw))
        return decode(message, raw)

    monkeypatch.setattr(relay.Outbox, "put", noted_put)
    monkeypatch.setattr(wire, "decode", noted_decode)
    return sizes


def job_of(pool: Pool, **options: str) -> closing[Job]:
    """A job for the length of a `with` block: who shares its pool does not wait for one that failed."""
    config = RunConfig("toy.py", num_workers=2, options=options, timing=TIMING)
    return closing(Job(pool.channel, pool.address, config, pool.blobs))


def once_only(pool: Pool) -> list[str]:
    """The blobs in the pool's store that serve once."""
    return [path.name for path in Path(pool.server._supervisor.store.directory).glob("once-*")]


@pytest.mark.parametrize("size", _SIZES)
def test_results_of_any_size(pool: Pool, largest: list[int], size: int) -> None:
    spec = program_pb2.Tensor(dtype="float64", shape=[2])
    with job_of(pool, result_bytes=str(size)) as job:
        kept = [job.feed(0, [np.array([step, 1.0]).tobytes()], [spec], results=True) for step in range(12)]
        for step, result in enumerate(kept):
            values = np.frombuffer(result.outputs(), np.float64)
            assert values.nbytes == size and (values == step + 1).all()
        assert job.bytes_from_pool == 12 * size
        job.drain(0, job_pb2.Drain.WHAT_METRICS)
        assert once_only(pool) == []
    assert max(largest) < MESSAGE_BYTES


@pytest.mark.parametrize("rows", [1, 8191, 8192, 8193, 1_000_000])
def test_streamed_batches_of_any_size(pool: Pool, largest: list[int], rows: int) -> None:
    random = np.random.default_rng(rows)
    batches = [random.integers(0, 100, rows).astype(np.float64) for _ in range(7)]
    spec = program_pb2.Tensor(dtype="float64", shape=[rows])
    with job_of(pool) as job:
        for batch in batches:
            job.feed(0, [batch.tobytes()], [spec])
        # Each rank adds up all of it, since the toy divides nothing.
        answer = job.drain(0, job_pb2.Drain.WHAT_METRICS)
        assert np.frombuffer(answer.contents[0])[0] == sum(batch.sum() for batch in batches)
        assert once_only(pool) == []
    assert max(largest) < MESSAGE_BYTES


def test_results_that_nobody_keeps_do_not_stay(pool: Pool) -> None:
    spec = program_pb2.Tensor(dtype="float64", shape=[1])
    with job_of(pool, result_bytes=str(1 << 20)) as job:
        for step in range(40):
            job.feed(0, [np.array([step], np.float64).tobytes()], [spec], results=True)
            assert len(once_only(pool)) < 40
        job.drain(0, job_pb2.Drain.WHAT_METRICS)
    assert once_only(pool) == [] and job.bytes_from_pool < 40 << 20


@pytest.mark.parametrize("rows", [1, 131_072, 131_073, 524_289, 2_000_000])
def test_batches_of_any_number_of_rows(pool: Pool, largest: list[int], rows: int) -> None:
    values, indices = np.arange(7.0), np.arange(rows, dtype="<i8") % 7
    with job_of(pool) as job:
        data = job.bind([values.tobytes()], [program_pb2.Tensor(dtype="float64", shape=[7])])
        for _ in range(5):
            job.run(0, data, indices.tobytes())
        answer = job.drain(0, job_pb2.Drain.WHAT_METRICS)
        assert np.frombuffer(answer.contents[0])[0] == 5 * values[indices].sum()
        assert once_only(pool) == []
    assert max(largest) < MESSAGE_BYTES


def test_many_small_steps_take_several_messages() -> None:
    random.seed(7)
    for _ in range(200):
        batches = [bytes(8 * random.choice((1, 100, 20_000, 200_000))) for _ in range(random.randrange(60))]
        parts = list(gathered(batches, ROWS_BYTES))
        assert [batch for part in parts for batch in part] == batches
        assert all(len(part) == 1 or sum(map(len, part)) <= ROWS_BYTES for part in parts)
        # No two of them would have gone together.
        assert all(sum(map(len, one)) + len(other[0]) > ROWS_BYTES for one, other in itertools.pairwise(parts))


def test_a_client_that_fetches_nothing_loses_its_job(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "MAX_OUTBOUND_BYTES", 10 << 20)
    stream = pool.train(1, result_bytes=str(2 << 20))
    pool.prepare(stream)
    stream.run([[row % 10] for row in range(60)], results=True)
    failed = stream.wait("failed").failed
    assert failed.error == "CapacityError" and "does not fetch its results" in failed.message
    stream.wait_end()
    # Those that wait, and what the worker had written meanwhile.
    assert len(stream.kinds("results")) <= 9


def test_a_client_lets_only_its_own_blobs_go(pool: Pool) -> None:
    first, second = pool.train(1, result_bytes=str(1 << 20)), pool.train(1)
    pool.prepare(first)
    array = pool.upload(np.arange(3.0)).blob
    first.run([[1]], results=True)
    (result,) = (event.results.outputs.blob for event in [first.wait("results")])
    second.fetched(result, array)
    second.close()
    second.wait_end()
    assert pool.blobs.find_missing([result, array]) == []
    first.fetched(result)
    first.close()
    first.wait_end()
    assert pool.blobs.find_missing([result, array]) == [result]


def test_row_numbers_that_are_not_there(pool: Pool) -> None:
    stream = pool.train(1)
    pool.prepare(stream)
    stream.run_blob(one_time(80))
    assert "upload it first" in stream.wait("failed").failed.message


def test_row_numbers_stay_until_each_worker_has_read_them(pool: Pool) -> None:
    stream = pool.train(2)
    pool.prepare(stream)
    rows = np.arange(10, dtype="<i8").tobytes()
    blob = one_time(len(rows))
    pool.blobs.send(blob, [rows])
    stream.run_blob(blob)
    assert np.frombuffer(stream.drain().state.payload.inline)[0] == 45.0
    assert pool.blobs.find_missing([blob]) == [blob]
    stream.close()


def test_every_process_tells_what_it_used_in_a_message_of_its_own(pool: Pool) -> None:
    stream = pool.train(2)
    assert [process.rank for process in stream.close().processes] == [0, 1]
    assert sorted(event.closed.remaining for event in stream.kinds("closed")) == [0, 1]


RESULTS = """
import sys
import numpy as np, tensorflow as tf
size = int(sys.argv[1])
w = tf.Variable(tf.ones([1]))
optimizer = tf.keras.optimizers.SGD(0.01)
@tf.function
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((w * x - 1.0) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, [w]), [w]))
    return loss, tf.fill([size], tf.stop_gradient(loss))
kept = [step(tf.ones([4, 1]) * (number + 2.0)) for number in range(6)]
for loss, large in kept:
    assert large.numpy().shape == (size,) and (large.numpy() == loss.numpy()).all()
print("seen", len(kept))
"""

BATCH = """
import sys
import numpy as np, keras
rows = int(sys.argv[1])
x = np.linspace(0, 1, rows, dtype=np.float32)[:, None]
model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="zeros")])
model.compile(keras.optimizers.SGD(0.1), "mse")
history = model.fit(x, 2 * x, batch_size=rows, epochs=3, verbose=0)
print("first loss", round(history.history["loss"][0], 4))
"""


def script(directory: Path, text: str) -> Path:
    path = directory / "train.py"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("mode", "megabytes"), some_of([("sync", 8), ("sync", 40), ("async", 8), ("async", 40)], [("async", 8)])
)
def test_a_loops_step_returns_megabytes(tmp_path: Path, mode: str, megabytes: int) -> None:
    done = run_fdt(script(tmp_path, RESULTS), str(megabytes * 250_000), mode=mode, limit_s=_LIMIT_S)
    assert "seen 6" in done.expect(0).stdout


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_fit_on_a_million_rows_a_step(tmp_path: Path, mode: str) -> None:
    done: Finished = run_fdt(script(tmp_path, BATCH), "1000000", mode=mode, limit_s=_LIMIT_S)
    assert "first loss 1.3333" in done.expect(0).stdout


def test_both_over_tcp(tmp_path: Path) -> None:
    """And with ranks of Horovod."""
    with serve(tmp_path) as pool:
        done = run_fdt(script(tmp_path, RESULTS), "10000000", limit_s=_LIMIT_S, options=pool.options)
        assert "seen 6" in done.expect(0).stdout
        done = run_fdt(script(tmp_path, BATCH), "1000000", limit_s=_LIMIT_S, options=pool.options)
        assert "first loss 1.3333" in done.expect(0).stdout
