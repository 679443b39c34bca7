"""A model as the rest of the program knows it: plain, validated data. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.images import ImageInput
from numaserve.workers.interface.settings import DEFAULT_SETTINGS, ModelSettings
from numaserve.workers.layers.caches import Latent
from numaserve.workers.layers.decoder import Decoder
from numaserve.workers.layers.dense import Dense
from numaserve.workers.layers.masked_head import MaskedHead
from numaserve.workers.layers.names import Aliases, TensorNames, find_names
from numaserve.workers.layers.partition import Partition
from numaserve.workers.layers.stage import Stage
from numaserve.workers.layers.stored import Stored
from numaserve.workers.layers.token_head import VECTORS, WEIGHTS, TokenHead
from numaserve.workers.layers.vision import Tower
from numaserve.workers.program.ops.rows import Pooling


def towers_note(towers: Sequence[str], *, sees: bool = False) -> str:
    """Return a sentence for the operator about towers of a checkpoint that are not used. `sees`: another one is."""
    parts = f"{towers[0]} tower is" if len(towers) == 1 else f"{' and '.join(towers)} towers are"
    served = "text and images are" if sees else "text is"
    return f"the checkpoint's {parts} not loaded: only {served} served"


@dataclass(frozen=True)
class ModelConfig:
    """One model, whatever its file format. `architecture` is Hugging Face's name, `family` is the file that maps it.

    `prefixes` may stand before "layers.0. ..." in the names of a checkpoint's tensors. Tensors whose names begin with
    `ignored_prefixes` are not needed for text. Tensors whose names end with a name of `buffers` follow from the
    configuration.
    """

    architecture: str
    family: str
    decoder: Decoder
    max_position: int
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    prefixes: tuple[str, ...] = ("model.",)
    ignored_prefixes: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()
    aliases: Aliases = ()
    saved_as: tuple[Decoder, ...] = ()  # the same decoder with the names of tensors that other checkpoints have
    # Layers of the checkpoint after the others, for multi-token prediction (MTP). A decoder has at most the first.
    skipped_layers: int = 0
    untied: bool = False  # config.json says that the head is tied, and the checkpoint has one of its own
    # Folders below the checkpoint's that hold tensors too, named "FOLDER/NAME".
    folders: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()  # of a classifier, whose vectors are their logits
    masked_head: MaskedHead | None = None  # of a masked language model, which is loaded for sparse vectors alone
    left_out: tuple[str, ...] = ()  # sentences about parts and settings of the checkpoint that are not used
    images: ImageInput | None = None  # of a decoder with a tower
    # The model as a Hugging Face folder has it, where this is that of a GGUF file: adapters may be named after either.
    in_folder: ModelConfig | None = field(default=None, repr=False, compare=False)
    # The model of all pipeline stages, where this is that of one: what the checkpoint holds.
    undivided: ModelConfig | None = field(default=None, repr=False, compare=False)
    # The quantized matrices of the checkpoint, by module ("layers.0.mlp.up_proj", "lm_head", "embed_tokens").
    stored: Mapping[str, Stored] = field(default_factory=dict, hash=False)

    @property
    def vocab_size(self) -> int:
        """Tokens of the vocabulary."""
        return self.decoder.embedding.vocabulary

    @property
    def hidden_size(self) -> int:
        """Columns of the residual stream."""
        return self.decoder.embedding.hidden

    @property
    def vector_size(self) -> int:
        """Columns of the vector of a pooled sequence."""
        dense = self.decoder.dense
        if self.is_sparse:
            return self.vocab_size
        return dense[-1].outputs if dense else self.hidden_size

    @property
    def num_layers(self) -> int:
        """Layers of the decoder."""
        return len(self.decoder.blocks)

    @property
    def caches_latents(self) -> bool:
        """Whether keys and values are latents, which are cached in bf16 only."""
        return any(isinstance(cache, Latent) for cache in self.decoder.keeps)

    @property
    def bidirectional(self) -> bool:
        """Whether tokens see later ones: a prompt is then whole in a step, and nothing of it is reused."""
        return any(cache.span.bidirectional for cache in self.decoder.keeps)

    @property
    def sees_whole_images(self) -> bool:
        """Whether tokens of an image see later ones: the rows of an image are then whole in a step."""
        return any(cache.span.images for cache in self.decoder.keeps)

    @property
    def has_states(self) -> bool:
        """True if layers keep states: the pages of a prefix are then not enough to continue from it."""
        return not all(cache.is_paged for cache in self.decoder.keeps)

    def names_in(self, found: Collection[str]) -> TensorNames:
        """Return the naming of a checkpoint with tensors of the names `found`. Raises `OperatorError` without
        embeddings."""
        return find_names(found, self.prefixes, self.aliases, self.decoder.embedding.module)

    def partition(self, shares: Sequence[int], settings: ModelSettings = DEFAULT_SETTINGS) -> Partition:
        """Return the division of the model among ranks with these shares, their cores."""
        adapted = self.decoder.adapted if settings.max_loras else frozenset()
        return Partition(self.decoder, tuple(shares), settings, self.stored, adapted)

    def with_own_head(self) -> ModelConfig:
        """Return the same model with a head that is not tied to its embeddings."""
        decoder = self.decoder
        head = None if decoder.head is None else replace(decoder.head, tied=False)
        predictor = decoder.predictor
        if predictor is not None and head is not None:
            predictor = replace(predictor, head=head)
        return replace(self, decoder=replace(decoder, head=head, predictor=predictor), untied=True)

    def check_served(self) -> None:
        """Raise `OperatorError` for a model that only drafts for another one."""
        if self.decoder.borrows:
            raise OperatorError("an assistant only drafts for another model: serve that one, with --draft-model")

    def drafting_for(self, served: ModelConfig) -> ModelConfig:
        """Return the same draft model as it drafts for another model: of text alone. Raises `OperatorError` if it
        cannot."""
        model = self.text_only()
        return replace(model, decoder=model.decoder.drafting_for(served.decoder))

    def or_saved_as(self, other: ModelConfig) -> ModelConfig:
        """Return the same model, whose checkpoint may have the names of tensors of `other` instead."""
        return replace(self, saved_as=(*self.saved_as, other.decoder))

    def with_tower(self, tower: Tower, aliases: Aliases) -> ModelConfig:
        """Return the same text model with a tower, whose tensors have the names of `aliases` and are no longer
        ignored."""
        saved = tuple(each for _, each in aliases)
        ignored = (each for each in self.ignored_prefixes if not any(name.startswith(each) for name in saved))
        return replace(
            self,
            decoder=replace(self.decoder, tower=tower),
            aliases=(*self.aliases, *aliases),
            ignored_prefixes=tuple(ignored),
        )

    def seeing(self, images: ImageInput) -> ModelConfig:
        """Return the same model, whose tower takes images of these settings."""
        tower = self.decoder.tower
        assert tower is not None  # noqa: S101  only such a model has image settings
        return replace(self, images=images, decoder=replace(self.decoder, tower=tower.bounded(images.rows_per_tile)))

    def unpredicted(self) -> ModelConfig:
        """Return the same model without the layer that predicts."""
        return replace(self, decoder=replace(self.decoder, predictor=None))

    @property
    def tower_prefixes(self) -> tuple[str, ...]:
        """The beginnings of names that checkpoints have for tensors of the tower."""
        tower = self.decoder.tower
        parameters = () if tower is None else tower.parameters()
        declared = tuple(source.name for parameter in parameters for source in parameter.sources)
        return tuple(saved for begin, saved in self.aliases if any(name.startswith(begin) for name in declared))

    def text_only(self) -> ModelConfig:
        """Return the same model without its tower, whose tensors are ignored."""
        if self.decoder.tower is None:
            return self
        return replace(
            self,
            decoder=replace(self.decoder, tower=None),
            images=None,
            ignored_prefixes=(*self.ignored_prefixes, *self.tower_prefixes),
            left_out=(towers_note(["vision"]), *self.left_out),
        )

    def staged(self, stage: int, stages: int) -> ModelConfig:
        """Return the same model with the blocks of one pipeline stage alone, for text. Raises `OperatorError` for a
        model that cannot be divided."""
        if stages == 1:
            return self
        if self.decoder.head is None:
            raise OperatorError("pipeline stages need a task that generates text: use one stage, or --task generate")
        whole = self.text_only().unpredicted()
        return replace(whole, decoder=Stage.of(whole.decoder, stage, stages), undivided=whole)

    def pooled(self, pooling: Pooling | None = None) -> ModelConfig:
        """Return the same model without its head and its tower, with that `pooling` or its own. Checkpoints of such
        models may name tensors without any prefix."""
        model = self.text_only()
        decoder = model.decoder
        return replace(
            model,
            decoder=replace(decoder, head=None, pooling=pooling or decoder.pooling),
            prefixes=(*model.prefixes, ""),
            ignored_prefixes=(*model.ignored_prefixes, "output."),
        )

    def followed_by(self, dense: Sequence[Dense], folders: Sequence[str]) -> ModelConfig:
        """Return the same pooled model with `dense` layers, whose tensors are in these folders."""
        aliases = *self.aliases, *((f"{folder}/", f"{folder}/") for folder in folders)
        decoder = replace(self.decoder, dense=tuple(dense))
        return replace(self, decoder=decoder, aliases=aliases, folders=tuple(folders))

    def classifying(self, pooling: Pooling, dense: Sequence[Dense], labels: tuple[str, ...]) -> ModelConfig:
        """Return the same model as a classifier with these layers of pooled sequences."""
        pooled = self.pooled(pooling)
        return replace(pooled, decoder=replace(pooled.decoder, dense=tuple(dense)), labels=labels)

    def with_token_head(self, head: TokenHead) -> ModelConfig:
        """Return the same pooled model with a head of single tokens, whose modules are not below a prefix."""
        aliases = *self.aliases, (VECTORS, VECTORS), (WEIGHTS, WEIGHTS)
        return replace(self, decoder=replace(self.decoder, token_head=head), aliases=aliases)

    def with_masked_head(self, head: MaskedHead) -> ModelConfig:
        """Return the same model with the head of a masked language model."""
        return replace(self, masked_head=head)

    def sparse(self) -> ModelConfig:
        """Return the same model, which has a masked head, with the maxima of its logits as vectors."""
        pooled = self.pooled("max")
        return replace(pooled, decoder=replace(pooled.decoder, masked_head=self.masked_head))

    @property
    def is_sparse(self) -> bool:
        """Whether the vector of a sequence has an entry for each token of the vocabulary."""
        return self.decoder.masked_head is not None

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the operator about parts of the checkpoint that are not served."""
        notes = [*self.left_out]
        skipped = self.skipped_layers - (self.decoder.predictor is not None)
        if skipped:
            notes.append(f"the checkpoint's multi-token prediction (MTP) layers are skipped: {skipped}")
        if self.untied and self.decoder.head is not None:
            notes.append(
                "config.json ties the output head to the embeddings, but the checkpoint has a separate output head, "
                "which is used"
            )
        return tuple(notes)
