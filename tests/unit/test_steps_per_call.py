from nfdt.steps_per_call import StepsPerCall


def test_a_call_takes_a_tenth_of_a_second() -> None:
    stride = StepsPerCall()
    assert stride.number == 1
    seen = []
    for _ in range(8):
        stride.note(stride.number, 0.002 * stride.number)
        seen.append(stride.number)
    assert seen == [2, 4, 8, 16, 32, 50, 50, 50]


def test_a_long_step_is_made_alone() -> None:
    stride = StepsPerCall()
    stride.note(1, 7.0)
    assert stride.number == 1
    stride.note(1, 0.04)
    assert stride.number == 2
    stride.note(2, 1.0)
    assert stride.number == 1


def test_a_call_that_took_no_time_doubles() -> None:
    stride = StepsPerCall()
    stride.note(1, 0.0)
    assert stride.number == 2


def test_a_short_call_does_not_make_the_next_one_long() -> None:
    stride = StepsPerCall()
    stride.note(1, 1e-6)
    assert stride.number == 2
