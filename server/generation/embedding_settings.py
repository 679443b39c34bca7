"""The prompts and the scaling of embeddings that a model's files declare, and the forms that a request may ask for."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Form = Literal["float", "base64", "binary", "ubinary"]  # of the numbers of a vector in an answer


@dataclass(frozen=True)
class EmbeddingSettings:
    """The texts that precede inputs, and the form of the vectors."""

    prompts: Mapping[str, str] = field(default_factory=dict, hash=False)  # by name
    default_prompt: str | None = None  # name of the prompt of inputs for which a request names none
    lowercase: bool = False  # whether texts are lowercased before they are tokenized
    normalize: bool = True  # whether vectors are scaled to length 1 unless a request says otherwise
