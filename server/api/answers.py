"""The common part of chat and text completions: identity, model check, the frame of an answer, prompt preparation."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field

from numaserve.server.api.context import ApiContext
from numaserve.server.api.errors import context_length_exceeded, model_not_found, not_ready
from numaserve.server.api.generation import Generation
from numaserve.server.api.schemas import SamplingFields
from numaserve.server.text.work import TextTooLong, Turns

# No vocabulary has tokens of nearly so many characters on average: a longer text cannot fit, and is refused before it
# keeps the tokenizer busy.
_MAX_CHARACTERS_PER_TOKEN = 256


@dataclass(frozen=True)
class Frame:
    """The fields that every object of one answer repeats."""

    id: str
    kind: str
    model: str
    system_fingerprint: str
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def new(cls, context: ApiContext, prefix: str, kind: str) -> Frame:
        """A frame with an id of its own, which starts with `prefix`."""
        return cls(f"{prefix}-{uuid.uuid4().hex}", kind, context.model_name, context.system_fingerprint)

    def wrap(self, choices: list[dict[str, object]], **more: object) -> dict[str, object]:
        """The JSON object of an answer, or of one chunk of it."""
        return {
            "id": self.id,
            "object": self.kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.system_fingerprint,
            "choices": choices,
            **more,
        }


class StreamUsage:
    """The `usage` of a stream's chunks: null until the last one, or with each chunk what was used so far."""

    def __init__(self, body: SamplingFields, generation: Generation) -> None:
        options = body.stream_options
        self.wanted = options is not None and options.include_usage is True
        self._continuous = options is not None and options.continuous_usage_stats is True
        self._generation = generation

    def of_chunk(self, index: int, *, begins: bool = False) -> dict[str, object]:
        """The field of a chunk of sequence `index`; one that `begins` it has no tokens yet."""
        if not self.wanted:
            return {}
        return {"usage": self._generation.usage_so_far(index, begins=begins) if self._continuous else None}


def check_model(context: ApiContext, model: str | None) -> None:
    """Raise `ApiError` 404 for another model than the one served; no model means that one."""
    if model is not None and model not in context.model_names:
        raise model_not_found(model)


def check_servable(context: ApiContext, model: str | None) -> None:
    """Raise `ApiError` before any work is done for a request that cannot be served now."""
    check_model(context, model)
    if not context.engine.is_ready():
        raise not_ready("The server is not ready: it is loading, restarting or shutting down. Try again shortly.")


def check_text_length(context: ApiContext, characters: int, param: str) -> None:
    """Raise `ApiError` for a text so long that it cannot fit whatever its tokens are."""
    limit = context.limits.context_length
    if characters > limit * _MAX_CHARACTERS_PER_TOKEN:
        raise context_length_exceeded(
            f"This model's maximum context length is {limit} tokens; {characters} characters are more than fit.", param
        )


async def encode_prompt(
    context: ApiContext, turns: Turns, text: str, param: str, *, add_special_tokens: bool = True
) -> list[int]:
    """Token ids of a prompt. Raises `ApiError` for one that is so long that it is not even counted to its end."""
    limits = context.limits
    try:
        return await turns.encode(text, max_tokens=limits.prompt_tokens, add_special_tokens=add_special_tokens)
    except TextTooLong as error:
        raise context_length_exceeded(
            f"This model's maximum context length is {limits.context_length} tokens, but the prompt has more than "
            f"{error.tokens} tokens. Shorten the prompt.",
            param,
        ) from error
