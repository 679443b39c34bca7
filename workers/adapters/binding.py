"""The matrices of a model that an adapter updates. Every tensor of an adapter is for one, or the adapter is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from numaserve.workers.adapters.low_rank import AdapterFiles, LowRank
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.layers.decoder import Decoder
from numaserve.workers.layers.embedding import HEAD
from numaserve.workers.layers.names import TensorNames
from numaserve.workers.layers.parameters import EACH, MatrixParameter, Source
from numaserve.workers.models.config.gguf_names import name_in_file
from numaserve.workers.models.registry import family_of
from numaserve.workers.models.spec import ModelConfig

# What stands before "layers.0. ..." in the modules of a model with a head, and of one whose text model is nested.
_PREFIXES = ("model.", "", "model.language_model.", "language_model.model.", "language_model.")


@dataclass(frozen=True)
class Updated:
    """A matrix that an adapter updates: as it is declared for the files of the adapter, whose rows may lie in another
    order than those of the checkpoint. `updates` has one for each distinct source of the matrix that is served, or
    None."""

    declared: MatrixParameter
    numbers: tuple[int, ...]  # for each part, which of the updates is for it
    updates: tuple[LowRank | None, ...]


Binding = Mapping[MatrixParameter, Updated]


def bind(files: AdapterFiles, config: ModelConfig, max_rank: int) -> Binding:
    """Return what an adapter does to each matrix that it updates.

    Raises `OperatorError`, naming the tensor, for one that is for no matrix that adapters can update, that has another
    shape, or a rank above `max_rank`.
    """
    declared = _declared_for(files, config)
    names = {name: source for source, name in _named(files, declared)}
    pairs = list(zip(config.decoder.matrices, declared.decoder.matrices, strict=True))
    adapted = {source for _, each in pairs if each.takes_adapters for source in each.sources}
    found: dict[Source, LowRank] = {}
    for name, update in files.updates.items():
        source = names.get(name)
        if source is None or source not in adapted:
            raise OperatorError(f"{files.where}: {name[:200]!r} {_reason(source, declared)}")
        _check(files, name, update, source, max_rank)
        if found.setdefault(source, update) is not update:
            raise OperatorError(
                f"{files.where}: {name[:200]!r} is in the adapter under two names, with other prefixes; save it again"
            )
    if not found:
        raise OperatorError(f"{files.where}: holds no tensor; save the adapter again")
    return {
        served: Updated(each, served.source_numbers, updates)
        for served, each in pairs
        if any(updates := _updates(served, each, found))
    }


def count_matrices(binding: Binding) -> int:
    """Return the number of matrices of the checkpoint that an adapter updates."""
    return len(
        {
            source
            for each in binding.values()
            for source, number in zip(each.declared.sources, each.numbers, strict=True)
            if each.updates[number] is not None
        }
    )


def _updates(
    served: MatrixParameter, declared: MatrixParameter, found: Mapping[Source, LowRank]
) -> tuple[LowRank | None, ...]:
    """The update of each distinct source of `served`, whose parts are those of `declared`."""
    updates: dict[int, LowRank | None] = {}
    for number, source in zip(served.source_numbers, declared.sources, strict=True):
        update = found.get(source)
        if updates.setdefault(number, update) is not update:
            raise OperatorError(
                f"{source.name} is a part of one tensor in the checkpoint, and the adapter updates the parts of this "
                "tensor differently; convert the adapter from the model that is served"
            )
    return tuple(updates.values())


def _declared_for(files: AdapterFiles, config: ModelConfig) -> ModelConfig:
    """The model as files of the adapter's kind have it."""
    if files.kind == "peft":
        return config.in_folder or config
    if config.in_folder is not None:
        return config
    form = family_of(config.architecture, files.where).gguf
    if form is None:
        raise OperatorError(
            f"{files.where}: models of the architecture {config.architecture} are not served from GGUF files; give the "
            "folder that PEFT has written"
        )
    present = {f"{name}.weight" for name in files.updates}
    return replace(config, decoder=config.decoder.in_gguf(form.pairs, present))


def _named(files: AdapterFiles, config: ModelConfig) -> Iterator[tuple[Source, str]]:
    """Yield all matrices of a model with the names that adapters may have for them."""
    if files.kind == "gguf":
        for source in _sources(config.decoder):
            yield source, name_in_file(source).removesuffix(".weight")
        return
    for decoder in (config.decoder, *config.saved_as):
        for prefix in dict.fromkeys((*config.prefixes, *_PREFIXES)):
            names = TensorNames(prefix, HEAD, config.aliases)
            for source in _sources(decoder):
                yield source, names.of(source, 0)


def _sources(decoder: Decoder) -> list[Source]:
    parameters = (each for each in decoder.parameters() if isinstance(each, MatrixParameter))
    return list(dict.fromkeys(source for each in parameters for source in each.sources))


def _reason(source: Source | None, declared: ModelConfig) -> str:
    """The reason why what an adapter updates is refused."""
    if source is None:
        example = next(each for each in declared.decoder.matrices if each.takes_adapters).sources[0]
        return (
            f"is not a matrix of this model, {declared.architecture}, that adapters can update, such as {example.name};"
            " check that the adapter is for this base model, and leave vision towers out of target_modules"
        )
    if EACH in source.name:
        return "is a routed expert, which adapters cannot update; leave experts out of target_modules"
    return (
        "is an embedding, an output head, a router, or a projection that attention absorbs (kv_b_proj), which adapters "
        "cannot update; leave it out of target_modules"
    )


def _check(files: AdapterFiles, name: str, update: LowRank, source: Source, max_rank: int) -> None:
    rows, columns = source.shape
    rank = update.rank
    shapes = tuple(update.a.shape), tuple(update.b.shape)
    if shapes != ((rank, columns), (rows, rank)):
        raise OperatorError(
            f"{files.where}: {name[:200]!r} has matrices A {list(shapes[0])} and B {list(shapes[1])}, and this model "
            f"needs A [rank, {columns}] and B [{rows}, rank]; the adapter is for another base model"
        )
    if not 1 <= rank <= max_rank:
        raise OperatorError(
            f"{files.where}: {name[:200]!r} has the rank {rank}; the server has memory for ranks from 1 to {max_rank}: "
            "start it with a larger max_lora_rank"
        )
