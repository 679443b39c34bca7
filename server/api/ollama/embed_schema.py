"""The bodies of POST /api/embed and /api/embeddings."""

from __future__ import annotations

from typing import Annotated

from numaserve.server.api.fields import MAX_INT, ShortText, Strict, Text, Unused
from numaserve.server.api.generation.asked import Asked, Texts
from numaserve.server.api.limits import ApiLimits
from numaserve.server.api.openai.completion_schema import MAX_PROMPTS
from numaserve.server.api.sampling import Sampling
from pydantic import BeforeValidator, Field


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


class OllamaEmbedRequest(Strict):
    """The body of POST /api/embed."""

    @classmethod
    def most_tokens(cls, limits: ApiLimits) -> int:
        """Tokens of many inputs, few of which are as long as they may be."""
        return 16 * limits.context_length

    model: ShortText
    """A served name; `:latest` may follow it. Another one is a 404."""
    input: Annotated[list[Text], BeforeValidator(_as_list), Field(min_length=1, max_length=MAX_PROMPTS)]
    """A text, or a list of them."""
    dimensions: Annotated[int, Field(ge=1, le=MAX_INT)] | None = None
    """The first so many numbers of each embedding; all unless set."""

    truncate: bool | None = None
    """Whether an input that does not fit is cut to what fits; true unless set."""
    keep_alive: Unused = None
    options: Unused = None

    def asked(self) -> Asked:
        """The request for embeddings."""
        texts = Texts(self.input, param="input", truncate=self.truncate is not False)
        return Asked(texts, Sampling(), model=self.model, pool=True)


class OllamaEmbeddingsRequest(Strict):
    """The body of POST /api/embeddings."""

    model: ShortText
    """A served name; `:latest` may follow it. Another one is a 404."""
    prompt: Text
    """A text; one that does not fit is cut to what fits."""
    keep_alive: Unused = None
    options: Unused = None

    def asked(self) -> Asked:
        """The request for embeddings."""
        return Asked(Texts([self.prompt], truncate=True), Sampling(), model=self.model, pool=True)
