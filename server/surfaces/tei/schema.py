"""The body of POST /embed."""

from __future__ import annotations

from typing import Literal

from numaserve.server.generation.asked import Asked, Length, Texts
from numaserve.server.generation.embedding_prompts import prompted
from numaserve.server.generation.embedding_settings import EmbeddingSettings
from numaserve.server.generation.token_choice import Sampling
from numaserve.server.http.fields.types import ShortText
from numaserve.server.surfaces.embedding_fields import Dimensions, ManyInputs, check_not_empty
from numaserve.server.surfaces.openai.completion_schema import Prompts


class TeiEmbedRequest(ManyInputs):
    """The body of POST /embed."""

    model: ShortText | None = None
    """Extension: name of the served model; any other name returns status 404."""
    inputs: Prompts
    """Input as a string or a list of token ids; several inputs as a list of either. The tokenizer adds its special
    tokens to strings only."""
    normalize: bool | None = None
    """Scale embeddings to length 1 after cutting them to `dimensions`; true unless set."""
    truncate: bool | None = None
    """Truncate inputs that exceed the context length; false unless set."""
    truncation_direction: Literal["Left", "Right", "left", "right"] | None = None
    """Part of a truncated input that is left out: `Left`, its start, or `Right`, its end; `Right` unless set."""
    prompt_name: ShortText | None = None
    """Name of the prompt that precedes each text, one of `prompts` in the model's config_sentence_transformers.json;
    the model's default prompt unless set."""
    dimensions: Dimensions | None = None
    """Number of leading dimensions to return of each embedding; all unless set."""

    def asked(self, settings: EmbeddingSettings) -> Asked:
        """Return the request in the form that all APIs share. Raises `ApiError` for an empty text, and for a prompt
        that the model lacks."""
        check_not_empty(self.inputs, "inputs")
        cut: Literal["start", "end"] = "start" if self.truncation_direction in ("Left", "left") else "end"
        length = Length(cut=cut if self.truncate else None)
        prompts = prompted(settings, self.inputs, {"prompt_name": self.prompt_name}, "inputs")
        return Asked(Texts(prompts, length=length, param="inputs"), Sampling(), model=self.model, pool=True)
