"""The lines before the first step say what each worker will do."""

import pytest

from fdt.capture.keras.opening import _asynchronous, _synchronous, turns
from fdt.config import RunConfig


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
