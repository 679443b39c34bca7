"""The messages between the processes of the application: an HTTP request, and the head of its answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

# Headers of one connection (RFC 9110, section 7.6.1), and headers that each sender sets itself.
_DROPPED = frozenset(
    {"connection", "content-length", "host", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding"}
    | {"upgrade", "expect"}
)

Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Call:
    """A client's request; `prefix` is the result of `blocks_of` for its prompt."""

    method: str
    target: str  # path and query
    headers: Headers
    body: bytes
    prefix: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Head:
    """The head of an answer, whose body follows in pieces."""

    status: int
    headers: Headers


class ReplicaGone(Exception):
    """The error of a replica whose server ended or cut off the answer."""


def passed_on(headers: Iterable[tuple[str, str]] | Mapping[str, str]) -> Headers:
    """Return the headers of a message that are passed on with the next message."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return tuple((name, value) for name, value in pairs if name.lower() not in _DROPPED)
