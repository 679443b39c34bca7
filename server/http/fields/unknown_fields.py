"""Unknown fields: ignored and named in the answer, or refused.

Clients and routers add fields of their own to every request; refusing those would exclude whole products. Silently
ignoring a misspelt known field would be worse, so that is still an error.
"""

import difflib
import logging
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from pydantic_core import PydanticCustomError

HEADER = "X-Numaserve-Ignored"
MAX_NAMES = 16  # in the header of one answer
MAX_NAME_CHARACTERS = 64
_MAX_LOGGED = 256
# The number of unknown names of an object that are compared with known ones: each comparison takes tens of
# microseconds.
_MAX_LOOKED_UP = 32
# `max_token`, `temprature` and `top_logprob` are above it; `reasoning` for `reasoning_effort` is below.
_SIMILARITY = 0.85
_TOKEN = re.compile(r"[A-Za-z*][A-Za-z0-9!#$%&'*+.^_`|~:/-]*")  # RFC 9651, 3.3.4

_logger = logging.getLogger("numaserve.api")


@dataclass
class UnknownFields:
    """The unknown fields of one request. With `refused` the first one is an error."""

    refused: bool = False
    names: list[str] = field(default_factory=list)  # the first `MAX_NAMES` that a header can carry, without duplicates
    count: int = 0

    def note(self, unknown: Collection[str], known: Iterable[str]) -> None:
        """Record the unknown fields of one object. Raises `PydanticCustomError` for a refused one."""
        for index, name in enumerate(unknown):
            if index == _MAX_LOOKED_UP:
                break
            meant = _meant(name, known)
            if self.refused or meant is not None:
                raise PydanticCustomError("unknown_field", "unknown field", {"name": name, "meant": meant})
            self._name(name)
        self.count += len(unknown)

    def note_type(self, field: str, kind: str, known: Iterable[str]) -> None:
        """Record the type of an object of `field` that is left out. Raises `PydanticCustomError` if it is refused."""
        meant = _meant(kind, known) if self.count < _MAX_LOOKED_UP else None
        if self.refused or meant is not None:
            raise PydanticCustomError("unknown_field", "unknown type", {"name": "type", "meant": meant})
        self._name(f"{field}.{kind}")
        self.count += 1

    def _name(self, name: str) -> None:
        if len(self.names) < MAX_NAMES and _can_be_shown(name) and name not in self.names:
            self.names.append(name)

    def header(self) -> str:
        """Return the header's value, an RFC 9651 list: the number of ignored fields, then some of their names."""
        return ", ".join((str(self.count), *(name if _TOKEN.fullmatch(name) else _quoted(name) for name in self.names)))


class IgnoredFieldsLog:
    """Logs each ignored name once, up to a bound: names are chosen by clients and unlimited."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def add(self, unknown: UnknownFields) -> None:
        """Log the names that are new."""
        for name in unknown.names:
            if name in self._seen or len(self._seen) >= _MAX_LOGGED:
                continue
            self._seen.add(name)
            _logger.info("ignored an unknown field of a request", extra={"fields": {"field": name}})
            if len(self._seen) == _MAX_LOGGED:
                _logger.info(f"logged {_MAX_LOGGED} names of ignored fields; further names are not logged")


def _meant(name: str, known: Iterable[str]) -> str | None:
    """Return the known field that `name` probably misspells; None if there is none."""
    if len(name) > MAX_NAME_CHARACTERS:
        return None
    close = difflib.get_close_matches(name.lower(), known, n=1, cutoff=_SIMILARITY)
    return close[0] if close else None


def _can_be_shown(name: str) -> bool:
    return 0 < len(name) <= MAX_NAME_CHARACTERS and name.isascii() and name.isprintable()


def _quoted(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
