"""All families, and the lookup of the family of an architecture. A family is a file in this folder that has a
`FAMILY`."""

import functools
import pkgutil
import re
from collections.abc import Iterable
from importlib import import_module

from numaserve.workers import models
from numaserve.workers.interface.errors import OperatorError, nearest
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.family import Family


@functools.cache
def families() -> dict[str, Family]:
    """All families by name."""
    modules = (module.name for module in pkgutil.iter_modules(models.__path__) if not module.ispkg)
    found = (getattr(import_module(f"{models.__name__}.{name}"), "FAMILY", None) for name in modules)
    return {family.name: family for family in found if isinstance(family, Family)}


def family_of(architecture: str, where: str) -> Family:
    """Return the family that runs one of Hugging Face's architectures.

    Raises `OperatorError` with the supported architectures of the most similar names.
    """
    known = {name: family for family in families().values() for name in family.architectures}
    if architecture not in known:
        raise _unsupported(architecture, where, known)
    return known[architecture]


def gguf_family(architecture: str, metadata: Fields) -> Family:
    """Return the family of a GGUF file of `architecture` with that `metadata`; raises like `family_of`."""
    known = [family for family in families().values() if family.gguf is not None]
    for family, form in ((each, each.gguf) for each in known):
        if form is not None and form.architecture == architecture and form.accepts(metadata):
            return family
    names = {family.gguf.architecture for family in known if family.gguf is not None}
    raise _unsupported(architecture, metadata.where, sorted(names))


def _unsupported(architecture: str, where: str, names: Iterable[str]) -> OperatorError:
    by_stem = {_stem(name): name for name in names}
    near = [by_stem[stem] for stem in nearest(_stem(architecture), by_stem)]
    hint = f" (similar supported names: {', '.join(near)})" if near else ""
    return OperatorError(
        f"{where}: architecture {architecture[:100]!r} is not supported{hint}; use a model of a family"
        " listed in docs/models.md"
    )


def _stem(architecture: str) -> str:
    """Return the part of a name that differs between architectures: nearly all names end alike."""
    return re.sub("(For[A-Z].*|Model)$", "", architecture[:100]).lower()
