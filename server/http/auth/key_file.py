"""The file of API keys: one key per line, followed by its name, limits and rights."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from numaserve.server.http.auth.quota import UNLIMITED, KeyLimits
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.files import SETTINGS_BYTES, read_text

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_NUMBER = re.compile(r"[0-9]{1,9}")
_FRACTION = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3})?")
_LEAST_WEIGHT, _MOST_WEIGHT = 0.01, 100.0


@dataclass(frozen=True)
class ApiKey:
    """A key, and the operator's settings for its owner."""

    key: str = field(repr=False)
    name: str = ""  # for people; empty if the file names none
    weight: float = 1.0  # its share of a full server, relative to the weights of other keys
    limits: KeyLimits = UNLIMITED
    admin: bool = False  # may load and unload models and adapters
    cache_group: str = ""  # keys with the same name share cached prefixes; empty: none named


def read_keys(path: Path) -> list[ApiKey]:
    """Return the keys of a file, one per line; empty lines and lines that start with ``#`` are skipped.

    Settings can follow a key, each once: ``name=alice weight=2 requests-per-minute=60 tokens-per-minute=100000
    concurrent=8 admin=yes cache-group=team``.

    Raises `OperatorError` if the file cannot be read, has an invalid line, or contains no key. The error contains no
    part of a key. An empty file is an error because serving without a check would be the wrong way to fail.
    """
    lines = [line.strip() for line in read_text(path, SETTINGS_BYTES).splitlines()]
    keys: dict[str, ApiKey] = {}
    names: set[str] = set()
    for number, line in enumerate(lines, start=1):
        if line and not line.startswith("#"):
            try:
                key = _parsed(line)
                _check_new(key, keys, names)
            except _Mistake as mistake:
                raise OperatorError(f"line {number} of the API key file {path}: {mistake}") from None
            keys[key.key] = key
            names.add(key.name)
    if not keys:
        raise OperatorError(f"the API key file {path} contains no key; write one key per line")
    return list(keys.values())


def is_sendable(key: str) -> bool:
    """Return whether an HTTP header can carry the key."""
    return key.isascii() and key.isprintable() and " " not in key


class _Mistake(ValueError):
    """A mistake in a line of the file."""


class _Setting(NamedTuple):
    field: str
    read: Callable[[str], str | float | int | None]  # returns None if the value is malformed
    form: str


def _name(text: str) -> str | None:
    return text if _NAME.fullmatch(text) else None


def _weight(text: str) -> float | None:
    weight = float(text) if _FRACTION.fullmatch(text) else 0.0
    return weight if _LEAST_WEIGHT <= weight <= _MOST_WEIGHT else None


def _number(text: str) -> int | None:
    return (int(text) if _NUMBER.fullmatch(text) else 0) or None


def _yes(text: str) -> bool | None:
    return True if text == "yes" else None


_NAME_FORM = "1 to 64 letters, digits and the characters . _ -"
_WHOLE = "a whole number from 1 to 999999999"
_SETTINGS = {
    "name": _Setting("name", _name, _NAME_FORM),
    "weight": _Setting("weight", _weight, f"a number from {_LEAST_WEIGHT:g} to {_MOST_WEIGHT:g}"),
    "requests-per-minute": _Setting("requests_per_minute", _number, _WHOLE),
    "tokens-per-minute": _Setting("tokens_per_minute", _number, _WHOLE),
    "concurrent": _Setting("concurrent", _number, _WHOLE),
    "admin": _Setting("admin", _yes, "yes"),
    "cache-group": _Setting("cache_group", _name, _NAME_FORM),
}
_LIMITS = frozenset(KeyLimits.__dataclass_fields__)


def _parsed(line: str) -> ApiKey:
    key, *words = line.split()
    if not is_sendable(key):
        raise _Mistake("the key contains a character that is not allowed in an HTTP header; use ASCII without spaces")
    if key.partition("=")[0] in _SETTINGS:
        raise _Mistake("the line starts with a setting; write the key first and its settings after it")
    given: dict[str, Any] = {}
    for place, word in enumerate(words, start=1):
        name, _, text = word.partition("=")
        setting = _SETTINGS.get(name)
        if setting is None:  # the word is not quoted: it may be part of a key with a space in it
            known = ", ".join(f"{each}=" for each in _SETTINGS)
            raise _Mistake(
                f"word {place} after the key is not a setting; settings are {known}, and a key contains no space"
            )
        value = setting.read(text)
        if value is None:
            raise _Mistake(f"{name}= must be followed by {setting.form}")
        if setting.field in given:
            raise _Mistake(f"{name}= is set twice; remove one of them")
        given[setting.field] = value
    limits = KeyLimits(**{name: given.pop(name) for name in _LIMITS & given.keys()})
    return ApiKey(key, limits=limits, **given)


def _check_new(key: ApiKey, keys: Collection[str], names: Collection[str]) -> None:
    if key.key in keys:
        raise _Mistake("an earlier line has the same key; remove one of the two lines")
    if key.name and key.name in names:
        raise _Mistake("an earlier line has the same name=; give each key its own name")
