"""The lines before the first step say what each worker will do."""

from typing import Any

import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from fdt.base.config import RunConfig
from fdt.capture.keras.opening import _asynchronous, _synchronous, apart, other_numbers, own_views, turns
from fdt.capture.step.traced_step import TracedStep
from fdt.capture.watching import Watch
from fdt.v1 import program_pb2


@pytest.mark.parametrize(
    ("rows", "workers", "expected"),
    [
        (64, 2, "global batch 64, as in the script: 32 rows a worker;"),
        (7, 2, "3 or 4 rows a worker;"),
        (2, 2, "1 row a worker;"),
        (1, 2, "one row for 1 of the 2 workers, none for the others;"),
        (3, 4, "one row for 3 of the 4 workers, none for the others;"),
        (None, 2, "global batch as in the script, its rows divided over the workers;"),
    ],
)
def test_what_a_synchronous_worker_takes(rows: int | None, workers: int, expected: str) -> None:
    assert expected in _synchronous(RunConfig("train.py", num_workers=workers), rows)[1]


def test_an_asynchronous_worker_takes_whole_batches() -> None:
    config = RunConfig("train.py", mode="async")
    assert "(1 row);" in _asynchronous(config, 1)[1]
    assert "(64 rows);" in _asynchronous(config, 64)[1]


@pytest.mark.parametrize(("mode", "workers", "watched"), [("sync", 2, True), ("async", 1, True), ("async", 2, False)])
def test_who_takes_turns_is_told(mode: str, workers: int, watched: bool) -> None:
    assert turns(RunConfig("train.py", mode=mode, num_workers=workers), watched) == []
    (line,) = turns(RunConfig("train.py", mode="async", num_workers=2), True)
    assert "the workers take turns" in line


def _drawing(draw: Any, **plain: Any) -> TracedStep:
    graph = tf.function(draw).get_concrete_function().graph
    traced = TracedStep(program_pb2.StepProgram(), [], {}, set(), graph, is_random=True)
    vars(traced).update(plain)
    return traced


def test_who_draws_other_numbers_than_plain_python_is_told() -> None:
    def counting() -> tf.Tensor:
        return tf.while_loop(
            lambda i, _: i < 3, lambda i, _: (i + 1, tf.random.gamma([2], 1.0, seed=1)), (0, tf.zeros(2))
        )[1]

    def stateless() -> tf.Tensor:
        return tf.random.stateless_normal([2], (1, 2))

    two, alone = RunConfig("train.py", num_workers=2), RunConfig("train.py", num_workers=1)
    (line,) = other_numbers(two, _drawing(counting, is_any_size=True))
    assert "drop_remainder" in line
    assert not other_numbers(alone, _drawing(counting, is_any_size=True))
    assert not other_numbers(two, _drawing(counting))
    assert not other_numbers(two, _drawing(stateless, is_any_size=True))
    compiled = _drawing(stateless)
    compiled.program.computation.compiled = True
    (line,) = other_numbers(alone, compiled)
    assert "jit_compile=True" in line
    (line,) = other_numbers(alone, _drawing(counting, watch=Watch()))
    assert "run_eagerly=True" in line
    assert not other_numbers(alone, _drawing(stateless, watch=Watch()))


def test_who_draws_without_a_seed_is_told_why_two_runs_differ() -> None:
    config, step = RunConfig("train.py", num_workers=2), _drawing(lambda: tf.random.normal([2]))
    context.set_global_seed(None)
    (line,) = apart(config, step)
    assert "set_random_seed" in line
    tf.random.set_seed(1)
    assert not apart(config, step) and not apart(config, _drawing(lambda: tf.zeros(2)))


def test_that_parts_of_sums_may_overflow_is_told() -> None:
    step = _drawing(lambda: tf.zeros(2), scales_half=True)
    (line,) = own_views(RunConfig("train.py", num_workers=2), step)
    assert line.startswith("float16: ") and "bfloat16" in line
    assert not own_views(RunConfig("train.py", num_workers=1), step)
    assert not own_views(RunConfig("train.py", num_workers=2), _drawing(lambda: tf.zeros(2)))
