"""The rights of pages in a browser: none, unless the server served the page or the operator named its origin.

A server on loopback without keys trusts every program of the machine. A browser is such a program, and it runs the code
of every page it shows. A page may send simple requests anywhere (CSRF). It may also point its own host name to this
machine's address, to read the answers too (DNS rebinding). https://fetch.spec.whatwg.org,
https://www.w3.org/TR/fetch-metadata/
"""

import ipaddress
from dataclasses import dataclass

ANY = "*"


@dataclass(frozen=True)
class BrowserRules:
    """The origins that may read answers, and the host names of the server.

    `open_locally`: the server listens on loopback only and requires no keys.
    """

    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    open_locally: bool = False

    def allow_host(self, host: str) -> bool:
        """Return whether requests with this Host, with or without a port, are served."""
        if not (self.open_locally or self.allowed_hosts):
            return True
        name = host_name(host)
        return ANY in self.allowed_hosts or name in self.allowed_hosts or is_local(name)

    def allow_origin(self, origin: str) -> bool:
        """Return whether pages of this origin may send requests and read the answers."""
        return ANY in self.cors_origins or origin in self.cors_origins


def is_local(name: str) -> bool:
    """Return whether a host name, without a port, is a loopback address of this machine."""
    if name == "localhost" or name.endswith(".localhost"):  # RFC 6761, 6.3: never resolved elsewhere
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def host_name(host: str) -> str:
    """Return the name in ``name:port`` or ``[address]:port``."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return name.lower().removesuffix(".")
