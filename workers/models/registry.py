"""All families, and the lookup of the family of an architecture. A family is a file in this folder that has a
`FAMILY`."""

import functools
import pkgutil
import re
from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module

from numaserve.workers import models
from numaserve.workers.interface.errors import OperatorError
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

    Raises `OperatorError` with the most similar names of supported architectures.
    """
    known = _by_architecture()
    if architecture not in known:
        raise _unsupported(architecture, where, known)
    return known[architecture]


def is_served(architecture: str) -> bool:
    """Return whether some family runs one of Hugging Face's architectures."""
    return architecture in _by_architecture()


def _by_architecture() -> dict[str, Family]:
    return {name: family for family in families().values() for name in family.architectures}


def projector_types(architecture: str) -> set[str]:
    """Return the types of projectors of vision towers that are supported next to GGUF files of `architecture`."""
    forms = (family.gguf for family in families().values())
    return {each for form in forms if form and architecture in form.architectures for each in form.projectors} - {""}


def gguf_family(architecture: str, metadata: Fields, projector: str = "") -> Family:
    """Return the family of a GGUF file of `architecture` with that `metadata`, and with a tower whose projector is of
    the type `projector`; raises like `family_of`."""
    known = [family for family in families().values() if family.gguf is not None]
    for family, form in ((each, each.gguf) for each in known):
        if form is None or projector not in form.projectors or architecture not in form.architectures:
            continue
        if form.accepts(metadata):
            return family
    names = {name for family in known if family.gguf is not None for name in family.gguf.architectures}
    raise _unsupported(architecture, metadata.where, sorted(names))


def _unsupported(architecture: str, where: str, names: Iterable[str]) -> OperatorError:
    near = _nearest(_stem(architecture), names)
    hint = f" (similar supported names: {', '.join(near)})" if near else ""
    return OperatorError(
        f"{where}: architecture {architecture[:100]!r} is not supported{hint}; use a model of a family"
        " listed in docs/models.md"
    )


def _nearest(stem: str, names: Iterable[str]) -> list[str]:
    """Return at most three of `names` that begin with the word of the same families, the most similar name first.

    Spelling alone was rejected: it takes Mamba for Llama, and sees nothing in common in Kimi Linear and Kimi K2.5.
    """
    words = {re.split("[^a-z]", name)[0] for name in families()}
    word = max(filter(stem.startswith, words), key=len, default=None)
    by_stem = {} if word is None else {other: name for name in names if (other := _stem(name)).startswith(word)}
    return [by_stem[other] for other in get_close_matches(stem, by_stem, n=3, cutoff=0.0)]


def _stem(architecture: str) -> str:
    """Return the part of a name that differs between architectures: nearly all names end alike."""
    return re.sub("(For[A-Z].*|Model)$", "", architecture[:100]).lower()
