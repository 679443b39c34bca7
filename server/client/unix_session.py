"""The HTTP session to a server on a Unix socket of this host, for a gateway and for a replica."""

from pathlib import Path

import aiohttp

_IDLE_CONNECTION_S = 30.0  # shorter than the server's, which could close a connection while a request is sent on it


def open_session(path: Path) -> aiohttp.ClientSession:
    """Return a session to the server that listens at `path`, for any number of concurrent requests."""
    connector = aiohttp.UnixConnector(str(path), limit=0, keepalive_timeout=_IDLE_CONNECTION_S)
    # No timeout: a long prompt may take long, and the watchdog ends a process that hangs.
    return aiohttp.ClientSession(
        connector=connector, timeout=aiohttp.ClientTimeout(), auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
    )
