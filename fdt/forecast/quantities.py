"""Parses bandwidths and times with units."""

import re

from fdt.errors import UsageError

_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_BANDWIDTHS = {prefix + unit: value for prefix, value in _PREFIXES.items() for unit in ("bit", "bit/s", "bps")}
_TIMES = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}


def bandwidth(text: str) -> float:
    """Returns bytes per second.

    Args:
        text: A number and a unit of bits per second: "10Gbit", "100 Mbit/s".

    Raises:
        UsageError: The text is no bandwidth, or not above 0.
    """
    value = _read(text, _BANDWIDTHS, "a bandwidth with its unit, such as 10Gbit or 100Mbit (bits per second)")
    if value <= 0:
        raise UsageError(f"expected a bandwidth above 0, such as 10Gbit. Received: {text}")
    return value / 8


def duration(text: str) -> float:
    """Returns seconds.

    Args:
        text: A number and a unit: "50us", "0.2 ms".

    Raises:
        UsageError: The text is no time.
    """
    return _read(text, _TIMES, "a time with its unit, such as 50us or 0.2ms")


def _read(text: str, units: dict[str, float], expected: str) -> float:
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-zµ/]+)\s*", text, re.IGNORECASE)
    unit = found[2].lower() if found else ""
    if found is None or unit not in units:
        raise UsageError(f"expected {expected}. Received: {text}")
    return float(found[1]) * units[unit]
