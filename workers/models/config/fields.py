"""Fields of an untrusted configuration: every value has a type and a range, every error names file and field."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeVar

from numaserve.workers.interface.errors import OperatorError

T = TypeVar("T")


class Fields:
    """A JSON object that came from outside. `where` begins every error message."""

    def __init__(self, values: Mapping[str, object], where: str) -> None:
        self.values = values
        self.where = where

    def error(self, message: str) -> OperatorError:
        """An error about this object, for raising."""
        return OperatorError(f"{self.where}: {message}")

    def has(self, key: str) -> bool:
        """Whether the field is there and not null."""
        return self.values.get(key) is not None

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """The integer field `key` in low..high; without `default` it has to be there."""
        value = self._get(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.error(f"{key} must be an integer from {low} to {high}, not {_show(value)}")
        return value

    def optional_integer(self, key: str, low: int, high: int) -> int | None:
        """Like `integer`, None where the field is missing or null."""
        return self.integer(key, low, high) if self.has(key) else None

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        """The finite number `key` in low..high; without `default` it has to be there."""
        return self._number(key, self._get(key, default), low, high)

    def optional_number(self, key: str, low: float, high: float) -> float | None:
        """Like `number`, None where the field is missing or null."""
        return self.number(key, low, high) if self.has(key) else None

    def numbers(self, key: str, count: int, low: float, high: float) -> tuple[float, ...]:
        """A list of exactly `count` finite numbers in low..high."""
        value = self._get(key, None)
        if not isinstance(value, list) or len(value) != count:
            raise self.error(f"{key} must be a list of {count} numbers")
        return tuple(self._number(key, item, low, high) for item in value)

    def flag(self, key: str, default: bool) -> bool:
        """The true-or-false field `key`."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.error(f"{key} must be true or false, not {_show(value)}")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """The text field `key`."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.error(f"{key} must be a string, not {_show(value)}")
        return value

    def choice(self, key: str, choices: Mapping[str, T], default: str | None = None) -> T:
        """The meaning that `choices` gives to the text field `key`."""
        value = self.text(key, default)
        if value not in choices:
            raise self.error(f"{key}={_show(value)} is not supported; supported values: {', '.join(choices)}")
        return choices[value]

    def texts(self, key: str, count: int) -> list[str]:
        """A list of exactly `count` texts."""
        value = self._get(key, None)
        if not isinstance(value, list) or len(value) != count or not all(isinstance(item, str) for item in value):
            raise self.error(f"{key} must be a list of {count} strings")
        return value

    def integers(self, key: str, low: int, high: int) -> tuple[int, ...]:
        """A list of integers in low..high; empty where the field is missing."""
        value = self.values.get(key)
        if value is None:
            return ()
        if not isinstance(value, list):
            raise self.error(f"{key} must be a list of integers")
        return self._integers(key, value, low, high, "integers")

    def token_ids(self, key: str, vocab_size: int) -> tuple[int, ...]:
        """One token id or a list of them; empty where the field is missing. Ids outside the vocabulary are refused."""
        value = self.values.get(key)
        if value is None:
            return ()
        return self._integers(key, value if isinstance(value, list) else [value], 0, vocab_size - 1, "token ids")

    def with_defaults(self, **defaults: object) -> Fields:
        """Return these fields, with `defaults` for missing ones; null counts as present."""
        return Fields({**defaults, **self.values}, self.where)

    def with_values(self, **values: object) -> Fields:
        """Return these fields, with `values` in place of their own."""
        return Fields({**self.values, **values}, self.where)

    def child(self, key: str) -> Fields:
        """The object in field `key`; an empty one where it is missing or null."""
        value = self.values.get(key)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise self.error(f"{key} must be an object, not {_show(value)}")
        return Fields(value, f"{self.where}: {key}")

    def refuse(self, key: str, *harmless: object) -> None:
        """Refuse a feature that would change the result: `key` has to be missing, null or one of `harmless`."""
        value = self.values.get(key)
        if value is not None and value not in harmless:
            raise self.error(f"{key}={_show(value)} is not supported")

    def _get(self, key: str, default: object) -> object:
        value = self.values.get(key)
        if value is not None:
            return value
        if default is None:
            raise self.error(f"{key} is missing")
        return default

    def _integers(self, key: str, items: list[object], low: int, high: int, what: str) -> tuple[int, ...]:
        found = []
        for item in items:
            if not isinstance(item, int) or isinstance(item, bool) or not low <= item <= high:
                raise self.error(f"{key} must hold {what} from {low} to {high}, not {_show(item)}")
            found.append(item)
        return tuple(found)

    def _number(self, key: str, value: object, low: float, high: float) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.error(f"{key} must be a number, not {_show(value)}")
        # An integer of a thousand digits does not fit a float.
        if not low <= value <= high or not math.isfinite(value):
            raise self.error(f"{key} must be from {low:g} to {high:g}, not {_show(value)}")
        return float(value)


def _show(value: object) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"  # cut short, it would end inside a value
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
