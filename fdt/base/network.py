"""Finds the network that connects workers of several hosts: the operator names it, it is never guessed.

Messages between workers are neither encrypted nor authenticated, so a pool with several hosts starts only if its operator has
named a trusted network.
"""

import ipaddress
from collections.abc import Mapping, Sequence

from fdt.base.config import Network
from fdt.errors import UsageError

Addresses = Mapping[str, Sequence[ipaddress.IPv4Interface]]


def trusted(named: str, address: str | None = None) -> Network:
    """Finds how this machine is connected to the network that the operator named.

    Args:
        named: A network interface of this machine ("eth1"), its IPv4 address, or the network ("10.0.0.0/24").
        address: Which of the machine's addresses there; None if it has only one.

    Raises:
        UsageError: The machine is not connected to it, or by several addresses.
    """
    return choose(own_addresses(), named, address)


def own_addresses() -> dict[str, list[ipaddress.IPv4Interface]]:
    """Returns the IPv4 addresses of this machine with their networks, by interface."""
    import socket

    import psutil

    found: dict[str, list[ipaddress.IPv4Interface]] = {}
    for name, addresses in psutil.net_if_addrs().items():
        for item in addresses:
            if item.family == socket.AF_INET:
                own = ipaddress.IPv4Interface(f"{item.address}/{item.netmask or '255.255.255.255'}")
                found.setdefault(name, []).append(own)
    return found


def choose(own: Addresses, named: str, address: str | None) -> Network:
    """Does what `trusted` does, for a machine with these addresses."""
    network = _parsed(named)
    found = [
        (interface, item, network or item.network)
        for interface, items in own.items()
        for item in items
        if named in (interface, str(item.ip)) or (network is not None and item.ip in network)
    ]
    if address is not None:
        found = [each for each in found if str(each[1].ip) == address]
    if len(found) == 1:
        interface, item, within = found[0]
        return Network(interface, str(item.ip), str(within))
    received = f"--trusted-network {named}" + (f" --interface {address}" if address is not None else "")
    has = ", ".join(f"{interface} {item}" for interface, items in own.items() for item in items)
    if found:
        raise UsageError(
            f"This machine has several addresses on the trusted network; say which with --interface ADDRESS. It has: "
            f"{has}. Received: {received}"
        )
    raise UsageError(
        f"This machine is not on that network. Expected the name of an interface, one of its IPv4 addresses, or a network "
        f"such as 10.0.0.0/24 that holds one. It has: {has}. Received: {received}"
    )


def holds(network: Network, address: str) -> bool:
    """Returns whether an address is one of the network's."""
    try:
        return ipaddress.ip_address(address) in ipaddress.ip_network(network.cidr)
    except ValueError:
        return False


def _parsed(named: str) -> ipaddress.IPv4Network | None:
    if "/" not in named:
        return None
    try:
        return ipaddress.IPv4Network(named, strict=False)
    except ValueError as error:
        raise UsageError(f"No network: {error}. Expected one such as 10.0.0.0/24. Received: {named}") from error
