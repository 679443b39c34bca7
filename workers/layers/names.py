"""The names that a checkpoint has for the tensors that layers declare."""

from collections.abc import Collection
from dataclasses import dataclass

from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.layers.embedding import EMBEDDING, HEAD
from numaserve.workers.layers.parameters import Source

# Beginnings of declared names, and what checkpoints have in place of each, without a prefix. Of several with the same
# beginning, the first that a checkpoint has counts.
Aliases = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class TensorNames:
    """`prefix` stands before "layers.0. ..."; `head` is the module of the output head, which is not below it."""

    prefix: str
    head: str
    aliases: Aliases = ()

    def of(self, source: Source, unit: int) -> str:
        """The name of a tensor, or the module of a matrix, for one unit of its parameter."""
        return self.head if source.name == HEAD else self.named(source.named(unit))

    def named(self, declared: str) -> str:
        """The name in the checkpoint of what is not the output head."""
        return aliased(declared, self.aliases) or self.prefix + declared


def aliased(declared: str, aliases: Aliases) -> str | None:
    """Return the name that a checkpoint has in place of a declared one; None if it has that name below its prefix."""
    return next(iter(all_aliased(declared, aliases)), None)


def all_aliased(declared: str, aliases: Aliases) -> list[str]:
    """Return all names that checkpoints have in place of a declared one."""
    return [saved + declared.removeprefix(begin) for begin, saved in aliases if declared.startswith(begin)]


def _found(aliases: Aliases, names: Collection[str]) -> Aliases:
    """Return the aliases, without those of a beginning that has another one among `names`."""
    begins = [begin for begin, _ in aliases]
    if len(set(begins)) == len(begins):
        return aliases
    there = {begin: saved for begin, saved in reversed(aliases) if any(name.startswith(saved) for name in names)}
    return tuple(each for each in aliases if there.get(each[0], each[1]) == each[1])


def find_names(
    names: Collection[str], prefixes: tuple[str, ...], aliases: Aliases = (), embedding: str = EMBEDDING
) -> TensorNames:
    """Return the naming of a checkpoint with tensors of these `names`. Raises `OperatorError` without those of the
    module `embedding`."""
    # Those that the checkpoint has come first.
    aliases = tuple(sorted(aliases, key=lambda alias: not any(name.startswith(alias[1]) for name in names)))
    saved = aliased(embedding, aliases)
    for prefix in prefixes:
        if f"{saved or prefix + embedding}.weight" in names:
            # Multimodal checkpoints nest it next to the language model.
            nested = f"{prefix.removesuffix('model.')}{HEAD}"
            has_nested = any(name.startswith(f"{nested}.") for name in names)
            return TensorNames(prefix, nested if has_nested else HEAD, _found(aliases, names))
    raise OperatorError(
        f"the checkpoint has no tensor {prefixes[0]}{embedding}.weight; serve a checkpoint whose tensors match its"
        " config.json"
    )
