"""The body of POST /v1/completions."""

from __future__ import annotations

from typing import Annotated

from numaserve.server.generation.asked import Asked, Texts
from numaserve.server.http.fields.media import refuse_media
from numaserve.server.http.fields.types import Neutral, Text, TokenId, TopLogprobs, conflict, neutral
from numaserve.server.http.limits import ApiLimits
from numaserve.server.surfaces.openai.constraint_fields import ConstraintFields
from numaserve.server.surfaces.openai.sampling_fields import SamplingFields
from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

DEFAULT_MAX_TOKENS = 16
MAX_PROMPTS = 8192


def _as_prompts(value: object) -> object:
    """Return a list of prompts; a single string or list of token ids becomes a list of one prompt."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value and all(isinstance(item, int) for item in value):
        return [value]
    if not isinstance(value, list) or not (
        all(isinstance(item, str) for item in value) or all(isinstance(item, list) for item in value)
    ):
        for item in value if isinstance(value, list) else [value]:
            refuse_media(item)
        raise ValueError("expected a string, a list of strings, a list of token ids or a list of lists of token ids")
    return value


def _kind_of_prompts(value: list[object]) -> str:
    return "[tokens]" if value and isinstance(value[0], list) else "[text]"


Tokens = Annotated[list[TokenId], Field(min_length=1)]
# Tags, so that an error is about the kind of prompt that was sent and not about the other one; with brackets, so that
# `param_of` leaves them out.
Prompts = Annotated[
    Annotated[list[Text], Tag("[text]")] | Annotated[list[Tokens], Tag("[tokens]")],
    Discriminator(_kind_of_prompts),
    BeforeValidator(_as_prompts),
    Field(min_length=1, max_length=MAX_PROMPTS),
]


class CompletionRequest(ConstraintFields, SamplingFields):
    """The body of POST /v1/completions."""

    @classmethod
    def most_tokens(cls, limits: ApiLimits) -> int:
        """Return the tokens of several prompts, few of which have the maximum length."""
        return 16 * limits.context_length

    prompt: Prompts
    """Prompt as a string or a list of token ids; several prompts as a list of either."""
    echo: bool | None = None
    """Begin the response with the prompt."""
    logprobs: TopLogprobs | None = None
    """Return the log-probabilities of the generated tokens and of this number of most likely tokens; with `echo` also
    for the prompt."""
    suffix: Text | None = None
    """Text after the response, for models with fill-in-the-middle tokens; needs a single prompt given as a string."""

    best_of: Annotated[int, Field(ge=1, le=20)] | None = None
    """Must equal `n`: the server does not select among completions."""
    add_special_tokens: Annotated[Neutral, neutral(True)] = None

    @model_validator(mode="after")
    def _fields_fit_together(self) -> CompletionRequest:
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise conflict("best_of", "'best_of' is not supported; omit it or set it to the value of 'n'")
        if self.resume_token_ids and (self.echo or len(self.prompt) > 1):
            raise conflict("resume_token_ids", "'resume_token_ids' requires exactly one prompt and no 'echo'")
        if self.suffix and (self.echo or len(self.prompt) > 1 or not isinstance(self.prompt[0], str)):
            raise conflict("suffix", "'suffix' requires exactly one text prompt and no 'echo'")
        return self

    def asked(self) -> Asked:
        """Return the request in the form that all APIs share."""
        with_logprobs = self.logprobs is not None
        return Asked(
            Texts(self.prompt, echo=self.echo is True, suffix=self.suffix or ""),
            self.sampling(),
            model=self.model,
            lora=self.lora_path,
            max_tokens=self.max_tokens,
            default_max_tokens=DEFAULT_MAX_TOKENS,
            logprobs=self.most_logprobs(self.logprobs),
            prompt_logprobs=(self.echo is True and with_logprobs) or self.prompt_logprobs is not None,
            constrained=self.constrained(),
            priority=self.priority or 0,
            resumed=self.resume_token_ids or (),
        )
