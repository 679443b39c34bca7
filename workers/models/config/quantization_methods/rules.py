"""Rules over module names, shared by the quantization methods."""

import re
from collections.abc import Callable, Iterable, Sequence

from numaserve.workers.layers.stored import ROW, Stored
from numaserve.workers.models.config.fields import Fields

# Maps all names that a module may have to its storage; None if it is not quantized.
Rule = Callable[[Sequence[str]], Stored | None]

_MAX_NAMES = 2**16
_MAX_PATTERN = 200
_SMALL_GROUP = 16
_MAX_GROUP = 2**20
# A quantifier after a group can run indefinitely, and each open quantifier multiplies the time by the name's length.
_REPEATED_GROUP = re.compile(r"\)[*+?{]")
_OPEN_QUANTIFIER = re.compile(r"[*+{]")
_MAX_OPEN_QUANTIFIERS = 4


def read_names(fields: Fields, *keys: str) -> list[str]:
    """Return the list of texts in the first of `keys` that exists; empty if none does."""
    for key in keys:
        value = fields.values.get(key)
        if value is None:
            continue
        if not isinstance(value, list) or len(value) > _MAX_NAMES or not all(isinstance(item, str) for item in value):
            raise fields.error(f"{key} must be a list of module names")
        return value
    return []


def read_group(fields: Fields, key: str) -> int:
    """Return the columns that share a scale; `ROW` where the field is -1."""
    group = fields.integer(key, -1, _MAX_GROUP)
    if group == -1:
        return ROW
    if (group % 32 and group != _SMALL_GROUP) or group == 0:
        supported = f"{_SMALL_GROUP}, multiples of 32, or -1 for one group per row"
        raise fields.error(f"{key}={group} is not supported; supported values: {supported}")
    return group


def read_bits(fields: Fields, key: str, *supported: int) -> int:
    """Return the bits of a code."""
    bits = fields.integer(key, 1, 64)
    if bits not in supported:
        raise fields.error(f"{key}={bits} is not supported; supported values: {', '.join(map(str, supported))}")
    return bits


def pattern(fields: Fields, text: str) -> re.Pattern[str]:
    """Return a regular expression from a configuration. Raises `OperatorError` for one that could run indefinitely."""
    quantifiers = len(_OPEN_QUANTIFIER.findall(text))
    if len(text) > _MAX_PATTERN or _REPEATED_GROUP.search(text) or quantifiers > _MAX_OPEN_QUANTIFIERS:
        raise fields.error(f"the pattern {text[:60]!r} is too complex to match safely")
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise fields.error(f"the pattern {text[:60]!r} is not a regular expression ({error})") from error


class Modules:
    """A list of modules, looked up by parts of a name: with hundreds of entries and tens of thousands of experts,
    comparing each with each would take minutes."""

    def __init__(self, modules: Iterable[str]) -> None:
        self._modules = frozenset(modules)

    def __bool__(self) -> bool:
        return bool(self._modules)

    def contains(self, names: Sequence[str]) -> bool:
        """Return whether one of `names` is a module of the list, lies in one, or ends with one."""
        return any(self._covers(name) for name in names)

    def _covers(self, name: str) -> bool:
        if name in self._modules:
            return True
        dots = [index for index, letter in enumerate(name) if letter == "."]
        return any(name[:dot] in self._modules or name[dot + 1 :] in self._modules for dot in dots)


def is_head(names: Sequence[str]) -> bool:
    """Return whether these are the names of the output head, which most methods leave as it is."""
    return "lm_head" in names
