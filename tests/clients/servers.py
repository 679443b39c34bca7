"""The servers that clients are run before."""

from typing import Protocol

import httpx

from tests.support.real_server import metrics_of

_SMALL = ("--tp", "1", "--threads-per-worker", "1")
# A server for agents, and one whose context any prompt of theirs is too long for.
AGENT_OPTIONS = (*_SMALL, "--kv-cache-gib", "0.1"), (*_SMALL, "--kv-cache-gib", "0.1", "--context-length", "512")
# A server for embeddings.
ENCODER_OPTIONS = ((*_SMALL, "--kv-cache-gib", "0.02"),)
# Of servers that are started for this: two of them and a client share a machine.
OPTIONS = (*_SMALL, "--kv-cache-gib", "0.5")


class Server(Protocol):
    """What a run has to know of a server."""

    url: str
    model: str

    def metrics(self) -> dict[str, float]:
        """See `metrics_of`."""


class RunningServer:
    """A server that somebody else has started."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.model: str = httpx.get(f"{url}/v1/models").raise_for_status().json()["data"][0]["id"]

    def metrics(self) -> dict[str, float]:
        """See `metrics_of`."""
        return metrics_of(httpx.get(f"{self.url}/metrics").raise_for_status().text)
