from nfdt.gate import Gate, default_max_delay


def test_nobody_waits_without_a_limit() -> None:
    gate = Gate(2, None)
    for _ in range(100):
        gate.finished(0)
    assert gate.is_open(0)


def test_a_worker_that_is_too_far_ahead_waits_for_the_slowest() -> None:
    gate = Gate(3, 1)
    gate.finished(0)
    assert gate.is_open(0)
    gate.finished(0)
    assert not gate.is_open(0)
    gate.finished(1)
    assert not gate.is_open(0)
    gate.finished(2)
    assert gate.is_open(0)


def test_zero_lets_nobody_start_on_a_second_batch_before_all_have_done_one() -> None:
    gate = Gate(2, 0)
    gate.finished(1)
    assert not gate.is_open(1)
    assert gate.is_open(0)
    gate.finished(0)
    assert gate.is_open(1)


def test_the_slowest_may_always_go_on() -> None:
    gate = Gate(2, 0)
    for worker in (0, 1, 1, 0, 0, 1):
        gate.finished(worker)
        slowest = min((0, 1), key=lambda w: gate._done[w])
        assert gate.is_open(slowest)


def test_all_are_level_again_after_a_pause() -> None:
    gate = Gate(2, 0)
    gate.finished(0)
    gate.level()
    assert gate.is_open(0)


def test_workers_that_share_a_host_do_not_drift_apart_by_default() -> None:
    assert default_max_delay(["", "", ""]) == 2
    # Of several, one may be slow for good: the others go on.
    assert default_max_delay(["/job:fdt/replica:0/task:0", "/job:fdt/replica:0/task:1"]) is None
    gate = Gate(2, default_max_delay(["", ""]))
    ahead = 0
    while gate.is_open(0):
        gate.finished(0)
        ahead += 1
    assert ahead == 3, "while the other makes its first step"
