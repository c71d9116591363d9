"""Parameters that `make test` leaves out: each kind of defect is shown once there, its repeats by `make test-all`."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def some_of(values: Iterable[Any], chosen: str | Collection[Any]) -> list[Any]:
    """Returns the values of a `parametrize`, those that are not chosen marked `thorough`.

    Args:
        values: Of one parameter; or tuples, of several.
        chosen: Those that `make test` has; words are names.
    """
    values = list(values)
    wanted = chosen.split() if isinstance(chosen, str) else list(chosen)
    unknown = [value for value in wanted if value not in values]
    assert not unknown, f"not among the values: {unknown}"
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=marks(value not in wanted))
        for value in values
    ]


def marks(is_thorough: bool) -> Any:
    """Returns the marks of a parameter."""
    return pytest.mark.thorough if is_thorough else ()
