"""What goes between the processes of the application: an HTTP request, and the head of its answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

# Of one connection, RFC 9110 section 7.6.1; and what whoever sends the message says anew.
_DROPPED = frozenset(
    {"connection", "content-length", "host", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding"}
    | {"upgrade", "expect"}
)

Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Call:
    """A request of a client; `prefix` is what `blocks_of` makes of its prompt."""

    method: str
    target: str  # path and query
    headers: Headers
    body: bytes
    prefix: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Head:
    """The head of an answer; its body follows in pieces."""

    status: int
    headers: Headers


class ReplicaGone(Exception):
    """The replica's server ended or broke off."""


def passed_on(headers: Iterable[tuple[str, str]] | Mapping[str, str]) -> Headers:
    """Those of a message that are also the next one's."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return tuple((name, value) for name, value in pairs if name.lower() not in _DROPPED)
