"""All families, and which of them runs an architecture. A family is a file beside the others that has a `FAMILY`."""

import functools
import pkgutil
from importlib import import_module

from numaserve.workers import models
from numaserve.workers.errors import OperatorError
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.family import Family


@functools.cache
def families() -> dict[str, Family]:
    """All families by name."""
    modules = (module.name for module in pkgutil.iter_modules(models.__path__) if not module.ispkg)
    found = (getattr(import_module(f"{models.__name__}.{name}"), "FAMILY", None) for name in modules)
    return {family.name: family for family in found if isinstance(family, Family)}


def family_of(architecture: str, where: str) -> Family:
    """The family that runs one of Hugging Face's architectures.

    Raises `OperatorError` with the list of those supported.
    """
    known = {name: family for family in families().values() for name in family.architectures}
    return _found([known[architecture]] if architecture in known else [], architecture, where, sorted(known))


def gguf_family(architecture: str, metadata: Fields) -> Family:
    """The family of a GGUF file of `architecture` with that `metadata`; raises like `family_of`."""
    known = [family for family in families().values() if family.gguf is not None]
    names = sorted({family.gguf.architecture for family in known if family.gguf is not None})
    fitting = [each for each in known if each.gguf and each.gguf.architecture == architecture]
    accepted = [each for each in fitting if each.gguf and each.gguf.accepts(metadata)]
    return _found(accepted, architecture, metadata.where, names)


def _found(fitting: list[Family], architecture: str, where: str, names: list[str]) -> Family:
    if not fitting:
        raise OperatorError(
            f"{where}: architecture {architecture[:100]!r} is not supported; supported are: {', '.join(names)}"
        )
    return fitting[0]
