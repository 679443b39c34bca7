"""The shape of a model family, which every file of this package fills in."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.spec import ModelConfig

Values = Mapping[str, object]


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
    extend or replace `values`, the fields of every family; `rope(metadata)` does the same for rope_scaling.
    """

    architecture: str
    accepts: Callable[[Fields], bool] = lambda metadata: True
    values: Callable[[Fields, Values], Values] = without_experts
    rope: Callable[[Fields], Values] = lambda metadata: {}
    equal_value_length: bool = True  # values of heads are as long as keys
    pairs: bool = False  # rotated dimensions lie in pairs
    others: tuple[str, ...] = ()
    classifier: str = ""  # the architecture of a file with a classification head; empty: such files are refused

    @property
    def architectures(self) -> tuple[str, ...]:
        """All values of general.architecture."""
        return (self.architecture, *self.others)


@dataclass(frozen=True)
class Family:
    """One model family. `configure(fields, architecture)` maps config.json to layers."""

    name: str
    architectures: tuple[str, ...]
    configure: Callable[[Fields, str], ModelConfig]
    gguf: GgufForm | None = None
