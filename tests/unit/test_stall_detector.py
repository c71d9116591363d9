"""When an engine counts as stalled: lists of looks, no clock."""

from fdt.worker.stall_detector import StallWatch


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


def test_a_first_step_that_leaves_the_processor_idle() -> None:
    watch = StallWatch(10.0)
    watch.look(0, 0.0, 1.0)
    watch.ask(0, 5)
    idle = []
    # It works for five seconds; then it waits, looks about now and then (half a second at once), works again and waits again.
    looks = [(5.0, 1.0), (6.0, 0.1), (20.0, 0.1), (20.5, 1.0), (30.0, 0.2), (40.0, 1.0), (41.0, 0.0), (241.0, 0.2)]
    for now_s, cores in looks:
        assert watch.look(0, now_s, cores) is None
        idle.append(watch.idle_s)
    assert idle == [0.0, 1.0, 15.0, 15.5, 25.0, 0.0, 1.0, 201.0]
    # The steps that follow have a limit of their own, and a process that has no steps to make rests.
    for done, now_s in ((1, 242.0), (1, 251.0), (5, 252.0), (5, 1000.0)):
        assert (watch.look(done, now_s, 0.0), watch.idle_s) == (None, 0.0)
