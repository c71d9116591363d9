"""Collects all rules, by operation."""

from typing import cast

from fdt.division import (
    contractions,
    control,
    draws,
    elementwise,
    indexing,
    lists,
    normalization,
    owners,
    ragged,
    reductions,
    shaping,
    slices,
    variables,
)
from fdt.division.walker import Rule

_FILES = (
    elementwise,
    reductions,
    shaping,
    slices,
    contractions,
    indexing,
    normalization,
    lists,
    draws,
    control,
    variables,
    owners,
    # Last, since some of its rules extend those of other files.
    ragged,
)

RULES: dict[str, Rule] = {name: cast(Rule, rule) for file in _FILES for name, rule in file.rules().items()}
