"""Clients without keys, identified by their network address."""

import ipaddress
from collections.abc import Sequence

from numaserve.server.scheduler.client import EVERYBODY, Client

_SITE_BITS = 64  # of an IPv6 address: a subscriber usually controls all addresses with the same prefix


def client_at(peer: Sequence[object] | None) -> Client:
    """Return the client at an ASGI peer, whose first item is the address; peers without an address are one client.

    The address is the connection's own. ``X-Forwarded-For`` is ignored, because anyone can write it.
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
