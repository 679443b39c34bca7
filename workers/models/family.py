"""The shape of a model family, which every file of this package fills in."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from numaserve.workers.interface.images import ImageInput
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.spec import ModelConfig

Values = Mapping[str, object]
# Buffers of position embeddings. Rotary ones were once in the attention of each layer, and later of the whole model.
TABLE_BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")
ROTARY_BUFFERS = tuple(f"rotary_emb.{name}" for name in ("inv_freq", "original_inv_freq", "cos_cached", "sin_cached"))

# Those of a tower are rotated by rows and columns of an image.
GRID_BUFFERS = (*ROTARY_BUFFERS, *(f"rotary_pos_emb.{name}" for name in ("inv_freq", "original_inv_freq")))
PIXTRAL_BUFFERS = (
    *ROTARY_BUFFERS,
    *(f"patch_positional_embedding.{name}" for name in ("inv_freq", "original_inv_freq")),
)


def without_experts(metadata: Fields, values: Values) -> Values:
    """Return the `values` of families without experts; refuse files that have experts."""
    name = metadata.text("general.architecture")
    metadata.refuse(f"{name}.expert_count", 0)
    return {}


def encoder_values(metadata: Fields, values: Values) -> Values:
    """Return the `values` of a GGUF file without the field that decoders have for bidirectional attention."""
    return {**without_experts(metadata, values), "is_causal": None}


@dataclass(frozen=True)
class GgufForm:
    """The form of a family in GGUF files.

    `architecture` is what general.architecture says, or one of `others`; where several families share that value,
    `accepts(metadata)` decides whether a file is of this one. `values(metadata, values)` are fields of config.json that
    extend or replace `values`, the fields of every family; `rope(metadata)` does the same for rope_scaling. A model
    with a vision tower has a file of its own for it, whose projector is of one of the types `projectors`.
    """

    architecture: str
    accepts: Callable[[Fields], bool] = lambda metadata: True
    values: Callable[[Fields, Values], Values] = without_experts
    rope: Callable[[Fields], Values] = lambda metadata: {}
    equal_value_length: bool = True  # values of heads are as long as keys
    pairs: bool = False  # rotated dimensions lie in pairs
    others: tuple[str, ...] = ()
    projectors: tuple[str, ...] = ("",)  # empty: without such a file
    classifier: str = ""  # the architecture of a file with a classification head; empty: such files are refused

    @property
    def architectures(self) -> tuple[str, ...]:
        """All values of general.architecture."""
        return (self.architecture, *self.others)


@dataclass(frozen=True)
class Family:
    """One model family. `configure(fields, architecture)` maps config.json to layers.

    `buffers` end the names of tensors that follow from the configuration: older libraries saved them with the weights,
    and they are never read. `images(fields, processor, config)` maps the settings of the image processor of a model
    with a tower. With `needs_processor` they must be there; otherwise all published models have those that `images`
    takes as defaults.
    """

    name: str
    architectures: tuple[str, ...]
    configure: Callable[[Fields, str], ModelConfig]
    gguf: GgufForm | None = None
    buffers: tuple[str, ...] = ROTARY_BUFFERS
    images: Callable[[Fields, Fields, ModelConfig], ImageInput] | None = None
    needs_processor: bool = True

    def config_of(self, fields: Fields, architecture: str) -> ModelConfig:
        """Return the configuration of a model, with the family's `buffers`. Raises `OperatorError` as `configure`
        does."""
        return replace(self.configure(fields, architecture), buffers=self.buffers)
