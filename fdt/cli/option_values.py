"""Parses the values of options. Each function is an argparse `type`; its error says what it expected."""

import argparse
import re
from collections.abc import Callable

_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGTkmgt])(i?)[Bb]")
_PERIOD = re.compile(r"(\d{1,6})([mhd])")
# A name, an IPv4 address, or an IPv6 address in brackets.
_HOST = re.compile(r"[\w.-]+|\[[0-9A-Fa-f:.%\w]+\]")


def num_workers(text: str) -> int:
    """Returns a number of workers, 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of workers, 1 or more. Received: {text}")
    return int(text)


def range_of_workers(text: str) -> tuple[int, int]:
    """Returns the least and the most workers: (4, 4) for "4", (2, 8) for "2..8"."""
    least, dots, most = text.partition("..")
    found = num_workers(least), num_workers(most if dots else least)
    if found[0] > found[1]:
        raise argparse.ArgumentTypeError(
            f"expected the least number of workers first: {most}..{least}. Received: {text}"
        )
    return found


def range_of_hosts(text: str) -> tuple[int, int]:
    """Returns the least and the most hosts: (4, 4) for "4", (0, 8) for "0..8"."""
    least, dots, most = text.partition("..")
    most = most if dots else least
    if not (least.isdecimal() and most.isdecimal() and 0 <= int(least) <= int(most) and int(most) > 0):
        raise argparse.ArgumentTypeError(f"expected the least and the most hosts, such as 0..8. Received: {text}")
    return int(least), int(most)


def numbers_of_workers(text: str) -> tuple[int, ...]:
    """Returns the numbers of workers in a comma-separated list, sorted, without duplicates."""
    return tuple(sorted({num_workers(number.strip()) for number in text.split(",")}))


def price(text: str) -> float:
    """Returns a price, 0 or more."""
    return _number(text, lambda value: 0 <= value < float("inf"), "a price of 0 or more, such as 2.5")


def part(text: str) -> float:
    """Returns a number from 0 to 1."""
    return _number(text, lambda value: 0 <= value <= 1, "a number from 0 to 1")


def num_steps(text: str) -> int:
    """Returns a number of steps, 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of steps, 1 or more. Received: {text}")
    return int(text)


def wait(text: str) -> float:
    """Returns a time in seconds, 0 or more."""
    return 0.0 if text == "0" else seconds(text)


def seconds(text: str) -> float:
    """Returns a time in seconds, above 0."""
    return _number(text, lambda value: 0 < value < float("inf"), "seconds, more than 0, such as 5")


def period(text: str) -> float:
    """Returns a time in seconds; its text has a unit, such as "30d" for thirty days."""
    match = _PERIOD.fullmatch(text)
    if match is None or not int(match[1]):
        raise argparse.ArgumentTypeError(f"expected a time with its unit (m, h or d), such as 30d. Received: {text}")
    return int(match[1]) * {"m": 60.0, "h": 3600.0, "d": 86400.0}[match[2]]


def tolerance(text: str) -> float:
    """Returns a number of at least 0 and below 1."""
    return _number(text, lambda value: 0 <= value < 1, "a number from 0 to 1, such as 1e-4")


def _number(text: str, fits: Callable[[float], bool], expected: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not fits(value):
        raise argparse.ArgumentTypeError(f"expected {expected}. Received: {text}")
    return value


def size(text: str) -> int:
    """Returns a size in bytes: 4 * 10^9 for "4GB", 512 * 2^20 for "512MiB"."""
    match = _SIZE.fullmatch(text)
    if match is None or not float(match[1]):
        raise argparse.ArgumentTypeError(f"expected a size with its unit, such as 4GB or 512MiB. Received: {text}")
    unit = 1024 if match[3] else 1000
    return int(float(match[1]) * unit ** (1 + "KMGT".index(match[2].upper())))


def num_own_workers(text: str) -> int:
    """Returns a number of workers, 0 or more."""
    return 0 if text == "0" else num_workers(text)


def host_name(text: str) -> str:
    """Returns a host's name: letters, digits, dots, dashes and underscores."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", text):
        raise argparse.ArgumentTypeError(f"expected a name of letters, digits, dots and dashes. Received: {text}")
    return text


def address(text: str) -> str:
    """Returns "host:port"."""
    host, _, port = text.rpartition(":")
    if not _HOST.fullmatch(host) or not port.isdecimal() or not 0 < int(port) < 65536:
        bare = ", without http:// or a path" if "/" in text else ""
        raise argparse.ArgumentTypeError(f"expected HOST:PORT, such as 10.0.0.5:7077{bare}. Received: {text}")
    return text


def loopback(text: str) -> str:
    """Returns "host:port"; accepts hosts on loopback only."""
    import ipaddress

    found = address(text)
    host = found.rpartition(":")[0].strip("[]")
    try:
        is_loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback:
        raise argparse.ArgumentTypeError(
            "expected an address on loopback, such as 127.0.0.1:9090, since anyone who reaches it can read the figures. "
            f"To show them elsewhere, put a proxy that asks for a password in front of it. Received: {text}"
        )
    return found
