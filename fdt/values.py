"""Values of options as people write them: each function reads one kind, and says what it expected (argparse's `type`)."""

import argparse


def num_workers(text: str) -> int:
    """Returns a number of workers, 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of workers, 1 or more. Received: {text}")
    return int(text)


def numbers_of_workers(text: str) -> tuple[int, ...]:
    """Returns several, in order."""
    return tuple(sorted({num_workers(number.strip()) for number in text.split(",")}))


def price(text: str) -> float:
    """Returns a price, 0 or more."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a price of 0 or more, such as 2.5. Received: {text}")
    return value


def part(text: str) -> float:
    """Returns a number from 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 1. Received: {text}")
    return value


def num_steps(text: str) -> int:
    """Returns a number of steps, 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of steps, 1 or more. Received: {text}")
    return int(text)


def seconds(text: str) -> float:
    """Returns a time above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected seconds, more than 0, such as 5. Received: {text}")
    return value


def tolerance(text: str) -> float:
    """Returns a number from 0, below 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 1, such as 1e-4. Received: {text}")
    return value


def num_own_workers(text: str) -> int:
    """Returns a number of workers, 0 or more."""
    return 0 if text == "0" else num_workers(text)


def address(text: str) -> str:
    """Returns "host:port"."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise argparse.ArgumentTypeError(f"expected HOST:PORT, such as 10.0.0.5:7077. Received: {text}")
    return text


def loopback(text: str) -> str:
    """Returns "host:port" on loopback."""
    import ipaddress

    found = address(text)
    host = found.rpartition(":")[0].strip("[]")
    try:
        is_loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback:
        raise argparse.ArgumentTypeError(
            "expected an address on loopback, such as 127.0.0.1:9090: figures are shown to whoever asks. To show them "
            f"elsewhere, put a proxy that asks for a password before it. Received: {text}"
        )
    return found
