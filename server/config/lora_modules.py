"""The LoRA adapters that the option `lora` names."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator

NAME_FORM = "1 to 128 letters, digits and the characters . _ - / and begin with a letter or a digit"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")


class LoraModule(NamedTuple):
    """The name of an adapter in requests, and its folder or file."""

    name: str
    path: Path


def is_lora_name(name: str) -> bool:
    """Return whether requests, URLs and labels of metrics can contain the name as it is."""
    return _NAME.fullmatch(name) is not None


def _as_modules(value: object) -> object:
    """Return the modules of a list of `NAME=PATH`, or of a mapping from names to paths in a file."""
    if isinstance(value, Mapping):
        pairs: list[tuple[Any, Any]] = list(value.items())
    elif isinstance(value, str | list):
        pairs = [_pair(each) for each in ([value] if isinstance(value, str) else value)]
    else:
        raise ValueError("must be NAME=PATH, or a list of these")
    if not pairs:
        raise ValueError("must name at least one adapter")
    modules: dict[str, LoraModule] = {}
    for name, path in pairs:
        if not isinstance(name, str) or not is_lora_name(name):
            raise ValueError(f"has the adapter name '{name}'. A name must have {NAME_FORM}")
        if not isinstance(path, str) or not path.strip():
            raise ValueError(f"has no path for the adapter '{name}'. Write {name}=PATH")
        if name in modules:
            raise ValueError(f"names the adapter '{name}' twice. Give each adapter a name of its own")
        modules[name] = LoraModule(name, Path(path))
    return tuple(modules.values())


def _pair(text: object) -> tuple[str, str]:
    name, equals, path = text.partition("=") if isinstance(text, str) else ("", "", "")
    if not equals:
        raise ValueError(f"has '{text}'. Write NAME=PATH, such as sql=/srv/loras/sql")
    return name, path


LoraModules = Annotated[tuple[LoraModule, ...], BeforeValidator(_as_modules)]
