"""A script that uses Horovod itself is its only rank, or is refused."""

import pytest

from fdt.capture.horovod import _check_alone, _scaled
from fdt.errors import UnsupportedError


class Basics:
    """What Horovod knows of itself."""

    def __init__(self, size: int):
        self.size, self.rank = (lambda: size), (lambda: size - 1)


def test_one_of_several_ranks_is_refused() -> None:
    _check_alone(Basics(1))
    with pytest.raises(UnsupportedError, match=r"as rank 3 of 4 .* fdt run --workers 4"):
        _check_alone(Basics(4))


def test_a_value_is_what_one_rank_makes_of_it() -> None:
    assert float(_scaled(3.0, {})) == 3.0
    assert float(_scaled(3.0, {"prescale_factor": 0.5, "postscale_factor": 4.0, "reduce_op": 1})) == 6.0
    assert int(_scaled(3, {"postscale_factor": 2.0})) == 6
