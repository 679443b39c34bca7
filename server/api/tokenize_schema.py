"""The bodies of POST /tokenize and /detokenize, in vLLM's shapes."""

from __future__ import annotations

from numaserve.server.api.fields import ShortText, Strict, TemplateArguments, Text, TokenId, conflict
from numaserve.server.api.limits import ApiLimits
from numaserve.server.api.openai.messages import Messages
from pydantic import model_validator


class TokenizeRequest(Strict):
    """A text, or a conversation as the chat endpoint would render it."""

    @classmethod
    def most_tokens(cls, limits: ApiLimits) -> int:
        """Tokens of a text that need not fit the context."""
        return limits.text_tokens

    model: ShortText | None = None
    """A served name; another one is a 404."""
    prompt: Text | None = None
    """A text; or else `messages`."""
    messages: Messages | None = None
    """A conversation, as the chat endpoint would render it."""
    add_special_tokens: bool = True
    """Add the model's special tokens to a text."""
    add_generation_prompt: bool = True
    """End a conversation where an answer begins."""
    chat_template_kwargs: TemplateArguments | None = None
    """Arguments of the chat template, as for the chat endpoint."""
    return_token_strs: bool = False
    """The tokens' texts too."""

    @model_validator(mode="after")
    def _one_of_two(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise conflict("prompt", "exactly one of 'prompt' and 'messages' is needed")
        return self


class DetokenizeRequest(Strict):
    """Token ids to turn back into text."""

    @classmethod
    def most_tokens(cls, limits: ApiLimits) -> int:
        """Tokens of a text that need not fit the context."""
        return limits.text_tokens

    model: ShortText | None = None
    """A served name; another one is a 404."""
    tokens: list[TokenId]
    """The token ids of a text."""
    skip_special_tokens: bool = False
    """Leave special tokens out of the text."""
