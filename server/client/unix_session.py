"""The way to a server of this host that listens on a Unix socket, for a gateway and for a replica."""

from pathlib import Path

import aiohttp

_IDLE_CONNECTION_S = 30.0  # shorter than the server's own, which would close one that a request is on its way to


def open_session(path: Path) -> aiohttp.ClientSession:
    """The way to the server that listens at `path`. It may be used by any number of requests at once."""
    connector = aiohttp.UnixConnector(str(path), limit=0, keepalive_timeout=_IDLE_CONNECTION_S)
    # No deadline: a long prompt takes what it takes, and a process that hangs is ended by its watchdog.
    return aiohttp.ClientSession(
        connector=connector, timeout=aiohttp.ClientTimeout(), auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
    )
