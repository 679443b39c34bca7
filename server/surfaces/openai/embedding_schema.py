"""The body of POST /v1/embeddings."""

from __future__ import annotations

from typing import Annotated, Literal

from numaserve.server.generation.asked import Asked, Texts
from numaserve.server.generation.embedding_prompts import InputType, prompted
from numaserve.server.generation.embedding_settings import EmbeddingSettings
from numaserve.server.generation.token_choice import Sampling
from numaserve.server.http.fields.types import MAX_INT, Neutral, Priority, ShortText, Strict, Unused, neutral
from numaserve.server.http.limits import ApiLimits
from numaserve.server.surfaces.openai.completion_schema import Prompts
from pydantic import Field


class EmbeddingRequest(Strict):
    """The body of POST /v1/embeddings."""

    @classmethod
    def most_tokens(cls, limits: ApiLimits) -> int:
        """Return the tokens of many inputs, few of which have the maximum length."""
        return 16 * limits.context_length

    model: ShortText | None = None
    """Name of the served model; any other name returns status 404."""
    input: Prompts
    """Input as a string or a list of token ids; several inputs as a list of either. The
    tokenizer adds its special tokens to strings only."""
    dimensions: Annotated[int, Field(ge=1, le=MAX_INT)] | None = None
    """Number of leading dimensions to return of each embedding; all unless set."""
    encoding_format: Literal["float", "base64"] | None = None
    """Encoding of embeddings: `float`, a list of numbers, or `base64`, little-endian 32-bit floats; `float` unless
    set."""
    normalize: bool | None = None
    """Extension of vLLM: scale embeddings to length 1 after cutting them to `dimensions`. Unless set, the model's
    sentence-transformers files decide; true without these files."""
    prompt_name: ShortText | None = None
    """Extension: name of the prompt that precedes each text, one of `prompts` in the model's
    config_sentence_transformers.json; the model's default prompt unless set."""
    input_type: InputType | None = None
    """Extension: use of the texts, which chooses the model's prompt for this use, such as `query` or `document`. The
    model's default prompt applies where it has none for this use."""
    priority: Priority | None = None
    """Extension: priority among the client's own requests; lower numbers start first; 0 unless set."""

    user: Unused = None
    add_special_tokens: Annotated[Neutral, neutral(True)] = None
    truncate_prompt_tokens: Annotated[Neutral, neutral()] = None
    embed_dtype: Annotated[Neutral, neutral("float32")] = None
    endianness: Annotated[Neutral, neutral("native", "little")] = None

    def asked(self, settings: EmbeddingSettings) -> Asked:
        """Return the request in the form that all APIs share. Raises `ApiError` for a prompt that the model lacks."""
        texts = Texts(prompted(settings, self.input, self.prompt_name, self.input_type), param="input")
        return Asked(texts, Sampling(), model=self.model, pool=True, priority=self.priority or 0)
