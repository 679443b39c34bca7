"""The bodies of POST /api/embed and /api/embeddings."""

from __future__ import annotations

from typing import Annotated

from numaserve.server.generation.asked import Asked, Length, Texts
from numaserve.server.generation.embedding_prompts import prompted
from numaserve.server.generation.embedding_settings import EmbeddingSettings
from numaserve.server.generation.token_choice import Sampling
from numaserve.server.http.fields.types import ShortText, Strict, Text, Unused
from numaserve.server.surfaces.embedding_fields import MAX_INPUTS, Dimensions, ManyInputs
from pydantic import BeforeValidator, Field


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


class OllamaEmbedRequest(ManyInputs):
    """The body of POST /api/embed."""

    model: ShortText
    """Name of the served model, with or without `:latest`; any other name returns status 404."""
    input: Annotated[list[Text], BeforeValidator(_as_list), Field(min_length=1, max_length=MAX_INPUTS)]
    """Text to embed, or a list of texts."""
    dimensions: Dimensions | None = None
    """Number of leading dimensions to return of each embedding; all unless set."""

    truncate: bool | None = None
    """Truncate inputs that exceed the context length; true unless set."""
    keep_alive: Unused = None
    options: Unused = None

    def asked(self, settings: EmbeddingSettings) -> Asked:
        """Return the request for embeddings of texts after the model's default prompt."""
        length = Length(cut=None if self.truncate is False else "end")
        texts = Texts(prompted(settings, self.input, {}, "input"), param="input", length=length)
        return Asked(texts, Sampling(), model=self.model, pool="whole")


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
        texts = Texts(prompted(settings, [self.prompt], {}, "prompt"), length=Length(cut="end"))
        return Asked(texts, Sampling(), model=self.model, pool="whole")
