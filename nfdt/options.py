"""Reads and checks the options of an asynchronous job."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import TypeVar

from fdt.base import held, rounding
from fdt.errors import UsageError
from nfdt.rules import Rule, make_rule

T = TypeVar("T")
DEFAULT_UPDATE = "ddc-asgd"
_PLACES = ("hosts", "pool")
_OUTER = ("averaging", "diloco")
# By their command-line names.
_OF_DELAYS = ("ddc", "lambda0", "q", "max-delay")
_OF_AVERAGING = ("average-every", "outer")
_KNOWN = {rounding.OPTION, held.MEMORY, "update", "ps", "ps-place", *_OF_DELAYS, *_OF_AVERAGING}


@dataclasses.dataclass(frozen=True)
class Options:
    """An asynchronous job's options.

    Attributes:
        rule: What a shard does with a gradient; None for averaging, where no gradients are exchanged.
        num_shards: Parameter servers.
        ps_place: Where they are if a job has several hosts: "hosts", round robin, or "pool", on the pool's own machine.
        max_delay: Steps that a worker may be ahead of the slowest; None if not set.
        average_every: Steps of a worker between two averages.
        outer: The outer optimizer, which is given the average.
        rounded: Whether parameters and gradients travel between hosts as 16-bit floats.
        memory_bytes: What the process of each host may use of memory; None if that is not known.
    """

    rule: Rule | None
    num_shards: int = 1
    ps_place: str = "hosts"
    max_delay: int | None = None
    average_every: int = 1
    outer: str = "averaging"
    rounded: bool = False
    memory_bytes: int | None = None

    def shard_hosts(self, num_hosts: int) -> tuple[int, ...]:
        """Returns for each parameter server the number of its host; the pool's own machine, if it takes part, is 0."""
        return tuple(0 if self.ps_place == "pool" else shard % num_hosts for shard in range(self.num_shards))


def read_options(options: Mapping[str, str]) -> Options:
    """Reads options by their command-line names, without the dashes.

    Raises:
        UsageError: An option is unknown, out of range, or does not go with the others.
    """
    unknown = sorted(set(options) - _KNOWN)
    if unknown:
        raise UsageError(
            f"Asynchronous training knows no option --{unknown[0]}. It knows --{', --'.join(sorted(_KNOWN))}."
        )
    update = options.get("update", DEFAULT_UPDATE)
    averaging = update == "averaging"
    for name in _OF_AVERAGING:
        if name in options and not averaging:
            raise UsageError(
                f"--{name} goes with --update averaging. Received: --update {update} --{name} {options[name]}"
            )
    for name in _OF_DELAYS:
        if name in options and averaging:
            raise UsageError(
                f"--{name} is about delayed gradients, and --update averaging exchanges none. Leave it out."
            )
    if "ddc" in options and update != "ddc-asgd":
        raise UsageError(f"--ddc goes with --update ddc-asgd. Received: --update {update} --ddc {options['ddc']}")
    if options.get("outer", _OUTER[0]) not in _OUTER:
        raise UsageError(f"--outer must be one of {', '.join(_OUTER)}. Received: --outer {options['outer']}")
    if options.get("ps-place", _PLACES[0]) not in _PLACES:
        raise UsageError(f"--ps-place must be one of {', '.join(_PLACES)}. Received: --ps-place {options['ps-place']}")
    if "ps-place" in options and averaging:
        raise UsageError("--ps-place is about parameter servers, and --update averaging has none. Leave it out.")
    rounded = rounding.is_rounded(options)
    if rounded and averaging:
        raise UsageError("--wire fp16 is about parameter servers, and --update averaging has none. Leave it out.")
    rule = None
    if not averaging:
        lambda0, q = _number(options, "lambda0", float), _number(options, "q", float)
        rule = make_rule(update, options.get("ddc", "robust"), lambda0, q)
    return Options(
        rule=rule,
        num_shards=_at_least(options, "ps", 1) or 1,
        ps_place=options.get("ps-place", _PLACES[0]),
        max_delay=_at_least(options, "max-delay", 0),
        average_every=_at_least(options, "average-every", 1) or 1,
        outer=options.get("outer", _OUTER[0]),
        rounded=rounded,
        memory_bytes=held.memory_bytes(options),
    )


def _number(options: Mapping[str, str], name: str, kind: Callable[[str], T]) -> T | None:
    if name not in options:
        return None
    try:
        value = kind(options[name])
    except ValueError:
        raise UsageError(f"--{name} must be a number. Received: --{name} {options[name]}") from None
    if isinstance(value, float) and math.isnan(value):
        raise UsageError(f"--{name} must be a number. Received: --{name} {options[name]}")
    return value


def _at_least(options: Mapping[str, str], name: str, least: int) -> int | None:
    value = _number(options, name, int)
    if value is not None and value < least:
        raise UsageError(f"--{name} must be a whole number, {least} or more. Received: --{name} {options[name]}")
    return value
