"""When an engine counts as stalled: lists of looks, no clock."""

from fdt.pool.stall import StallWatch


def test_no_steps_asked_for_is_no_stall() -> None:
    watch = StallWatch(10.0)
    assert [watch.look(0, float(now)) for now in range(0, 1000, 100)] == [None] * 10


def test_a_step_that_does_not_end() -> None:
    watch = StallWatch(10.0)
    watch.ask(0, 5)
    assert watch.look(2, 0.0) is None
    assert watch.look(2, 10.0) is None
    assert watch.look(2, 10.5) == 10.5


def test_the_first_step_of_a_program_may_take_long() -> None:
    watch = StallWatch(10.0)
    watch.ask(0, 5)
    assert watch.look(0, 0.0) is None
    assert watch.look(0, 1000.0) is None
    assert watch.look(5, 1001.0) is None
    watch.ask(1, 5)
    assert watch.look(5, 1002.0) is None
    assert watch.look(5, 2000.0) is None
    assert watch.look(6, 2001.0) is None
    assert watch.look(6, 2012.0) == 11.0


def test_every_step_begins_anew() -> None:
    watch = StallWatch(10.0)
    watch.ask(0, 100)
    assert [watch.look(step, 9.0 * step) for step in range(1, 50)] == [None] * 49


def test_slow_steps_are_given_more_time() -> None:
    watch = StallWatch(10.0)
    watch.ask(0, 100)
    for step in range(1, 5):
        assert watch.look(step, 8.0 * step) is None
    assert watch.look(4, 8.0 * 4 + 159.0) is None
    assert watch.look(4, 8.0 * 4 + 161.0) == 161.0


def test_time_without_work_does_not_count() -> None:
    watch = StallWatch(10.0)
    watch.ask(0, 5)
    assert watch.look(5, 0.0) is None
    assert watch.look(5, 1000.0) is None
    watch.ask(0, 5)
    assert watch.look(5, 1005.0) is None
    assert watch.look(5, 1009.0) is None
    assert watch.look(5, 1010.5) == 10.5
