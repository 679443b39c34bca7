"""The bodies of POST /api/embed and /api/embeddings."""

from __future__ import annotations

from typing import Annotated

from numaserve.server.generation.asked import Asked, Texts
from numaserve.server.generation.embedding_prompts import prompted
from numaserve.server.generation.embedding_settings import EmbeddingSettings
from numaserve.server.generation.token_choice import Sampling
from numaserve.server.http.fields.types import MAX_INT, ShortText, Strict, Text, Unused
from numaserve.server.http.limits import ApiLimits
from numaserve.server.surfaces.openai.completion_schema import MAX_PROMPTS
from pydantic import BeforeValidator, Field


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


class OllamaEmbedRequest(Strict):
    """The body of POST /api/embed."""

    @classmethod
    def most_tokens(cls, limits: ApiLimits) -> int:
        """Return the tokens of many inputs, few of which have the maximum length."""
        return 16 * limits.context_length

    model: ShortText
    """Name of the served model, with or without `:latest`; any other name returns status 404."""
    input: Annotated[list[Text], BeforeValidator(_as_list), Field(min_length=1, max_length=MAX_PROMPTS)]
    """Text to embed, or a list of texts."""
    dimensions: Annotated[int, Field(ge=1, le=MAX_INT)] | None = None
    """Number of leading dimensions to return of each embedding; all unless set."""

    truncate: bool | None = None
    """Truncate inputs that exceed the context length; true unless set."""
    keep_alive: Unused = None
    options: Unused = None

    def asked(self, settings: EmbeddingSettings) -> Asked:
        """Return the request for embeddings of texts after the model's default prompt."""
        texts = Texts(prompted(settings, self.input), param="input", truncate=self.truncate is not False)
        return Asked(texts, Sampling(), model=self.model, pool=True)


class OllamaEmbeddingsRequest(Strict):
    """The body of POST /api/embeddings."""

    model: ShortText
    """Name of the served model, with or without `:latest`; any other name returns status 404."""
    prompt: Text
    """Text to embed; truncated if it exceeds the context length."""
    keep_alive: Unused = None
    options: Unused = None

    def asked(self, settings: EmbeddingSettings) -> Asked:
        """Return the request for the embedding of the text after the model's default prompt."""
        texts = Texts(prompted(settings, [self.prompt]), truncate=True)
        return Asked(texts, Sampling(), model=self.model, pool=True)
