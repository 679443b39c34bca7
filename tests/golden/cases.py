"""The parts of a record: requests, the servers that answer them, and what a record holds of an answer."""

from dataclasses import dataclass, field
from typing import Any

Body = dict[str, Any] | list[Any] | str | bytes | None
NOTHING = "nothing"  # the name of a checkpoint that is not there
GREEDY = {"temperature": 0}


@dataclass(frozen=True)
class Case:
    """A request. A `str` or `bytes` body is sent as it is, another one as JSON.

    `take` maps a name to a pattern; the first group of its first match in the answer replaces `{{name}}` in the paths
    and bodies of later requests of the same server.
    """

    name: str
    path: str
    body: Body = None
    method: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    take: dict[str, str] = field(default_factory=dict)

    @property
    def verb(self) -> str:
        """The method of the request."""
        return self.method or ("GET" if self.body is None else "POST")


@dataclass(frozen=True)
class Served:
    """A server of the checkpoint `model`, and the requests that it answers one after the other.

    Without a `model` the options name a file of models. `files` are written to the server's folder before its start;
    `{folder}` in an option is this folder, and `{models}` in options and files is the folder of the checkpoints.
    `events` records the KV events of all requests. `loose` are patterns of what depends on time on this server, which
    the record masks.
    """

    name: str
    model: str
    cases: tuple[Case, ...]
    options: tuple[str, ...] = ()
    files: dict[str, str] = field(default_factory=dict)
    events: bool = False
    loose: tuple[str, ...] = ()

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return int(self.options[self.options.index("--tp") + 1]) if "--tp" in self.options else 1


@dataclass(frozen=True)
class Command:
    """A command that ends by itself."""

    name: str
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Entry:
    """A line of a record."""

    name: str
    request: str
    status: int
    headers: dict[str, str]
    body: str


def both_ways(name: str, path: str, body: dict[str, Any], **more: Any) -> tuple[Case, Case]:
    """Return a request with a whole answer, and the same with a stream."""
    whole = Case(name, path, {**body, "stream": False}, **more)
    return whole, Case(f"{name}, streamed", path, {**body, "stream": True}, **more)
