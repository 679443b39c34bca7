"""Whose a request is where there are no keys: whoever is at its address."""

import ipaddress
from collections.abc import Sequence

from numaserve.server.scheduler.client import EVERYBODY, Client

_SITE_BITS = 64  # of an IPv6 address: whoever has one has all that begin like it


def client_at(peer: Sequence[object] | None) -> Client:
    """The client at a peer of ASGI, which begins with an address; all whose address is not told are one.

    The address is the connection's own. What ``X-Forwarded-For`` says is not looked at: anybody can write it.
    """
    try:
        address = ipaddress.ip_address(str(peer[0])) if peer else None
    except ValueError:
        address = None
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            site = int(address) >> (128 - _SITE_BITS) << (128 - _SITE_BITS)
            return Client(f"{ipaddress.IPv6Address(site)}/{_SITE_BITS}")
        address = address.ipv4_mapped
    return EVERYBODY if address is None else Client(str(address))
