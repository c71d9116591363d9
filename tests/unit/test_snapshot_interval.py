"""How often snapshots are taken: numbers in, numbers out."""

import math

import pytest

from fdt.client.snapshot_interval import SnapshotInterval


def test_while_nothing_fails_snapshots_take_a_fiftieth_of_the_time_at_most() -> None:
    snapshot_interval = SnapshotInterval(4.0, 100.0)
    assert snapshot_interval.interval_s(0.01, 200.0) == 4.0
    assert snapshot_interval.interval_s(0.5, 200.0) == pytest.approx(25.0)


def test_where_faults_are_frequent_the_interval_is_youngs() -> None:
    snapshot_interval = SnapshotInterval(4.0, 0.0)
    for moment_s in (10.0, 20.0, 30.0):
        snapshot_interval.lost(moment_s)
    assert snapshot_interval.interval_s(0.07, 30.0) == pytest.approx(math.sqrt(2 * 0.07 * 10.0))
    # An interval that is best for all that fails would be longer than the usual one.
    assert snapshot_interval.interval_s(3.0, 30.0) == pytest.approx(max(math.sqrt(2 * 3.0 * 10.0), 5 * 3.0))
    assert snapshot_interval.interval_s(0.9, 30.0) == pytest.approx(4.5)
    # A pause that is hardly one is not all that a snapshot costs.
    assert snapshot_interval.interval_s(1e-6, 30.0) == 0.25


def test_it_is_the_usual_one_again_when_faults_have_stopped() -> None:
    snapshot_interval = SnapshotInterval(4.0, 0.0)
    for moment_s in range(1, 20):
        snapshot_interval.lost(float(moment_s))
    assert snapshot_interval.interval_s(0.07, 19.0) == pytest.approx(math.sqrt(2 * 0.07))
    # Five faults in a thousand seconds: every 200.
    assert snapshot_interval.interval_s(0.07, 1014.0) == 4.0
