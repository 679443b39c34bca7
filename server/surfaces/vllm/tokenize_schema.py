"""The bodies of POST /tokenize and /detokenize, in vLLM's formats."""

from __future__ import annotations

from numaserve.server.http.fields.types import ShortText, Strict, TemplateArguments, Text, TokenId, conflict
from numaserve.server.http.limits import ApiLimits
from numaserve.server.surfaces.openai.chats.messages import Messages
from pydantic import model_validator


class TokenizeRequest(Strict):
    """The body of POST /tokenize: a text, or a conversation rendered as by the chat endpoint."""

    @classmethod
    def most_tokens(cls, limits: ApiLimits) -> int:
        """Return the tokens of a text, which need not fit the context."""
        return limits.text_tokens

    model: ShortText | None = None
    """Name of the served model; any other name returns status 404."""
    prompt: Text | None = None
    """Text to tokenize; required unless `messages` is set."""
    messages: Messages | None = None
    """Conversation to tokenize, rendered as by the chat endpoint."""
    add_special_tokens: bool = True
    """Add the model's special tokens to `prompt`."""
    add_generation_prompt: bool = True
    """End the rendered conversation with the beginning of a response."""
    chat_template_kwargs: TemplateArguments | None = None
    """Arguments of the chat template, as for the chat endpoint."""
    return_token_strs: bool = False
    """Return the text of each token as well."""

    @model_validator(mode="after")
    def _one_of_two(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise conflict("prompt", "exactly one of 'prompt' and 'messages' is needed")
        return self


class DetokenizeRequest(Strict):
    """The body of POST /detokenize: token ids to convert to text."""

    @classmethod
    def most_tokens(cls, limits: ApiLimits) -> int:
        """Return the tokens of a text, which need not fit the context."""
        return limits.text_tokens

    model: ShortText | None = None
    """Name of the served model; any other name returns status 404."""
    tokens: list[TokenId]
    """Token ids to convert to text."""
    skip_special_tokens: bool = False
    """Omit special tokens from the text."""
