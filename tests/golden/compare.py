"""The differences of two records, in a form for readers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.golden.recording import read

_AROUND = 80


def differences(first: Path, second: Path) -> Iterator[str]:
    """Yield a text for each case that is not the same in both records."""
    old, new = read(first), read(second)
    for name in old.keys() | new.keys():
        if name not in new or name not in old:
            yield f"{name}\n    only in {first if name in old else second}"
    for name, line in old.items():
        if name in new and new[name] != line:
            yield f"{name}\n    {line['request'][:300]}\n{_what(line, new[name])}"
    if [*old] != [*new] and old.keys() == new.keys():
        yield "the order of cases"


def _what(old: dict[str, Any], new: dict[str, Any]) -> str:
    lines = [f"    {key}: {old[key]!r} -> {new[key]!r}" for key in ("status", "headers") if old[key] != new[key]]
    if old["request"] != new["request"]:
        lines.append(f"    another request: {new['request'][:300]}")
    if old["body"] != new["body"]:
        lines += _text(old["body"], new["body"])
    return "\n".join(lines)


def _text(old: str, new: str) -> list[str]:
    """Return the surroundings of the first difference of two texts."""
    pairs = enumerate(zip(old, new, strict=False))
    at = next((place for place, (one, other) in pairs if one != other), min(len(old), len(new)))
    start = max(0, at - _AROUND)
    return [
        f"    from character {at} of {len(old)} and {len(new)}:",
        f"    - …{old[start : at + _AROUND]!r}",
        f"    + …{new[start : at + _AROUND]!r}",
    ]
