"""The body of POST /api/generate."""

from __future__ import annotations

from typing import Annotated

from numaserve.server.generation.asked import Asked, Chat, Texts
from numaserve.server.generation.conversation.messages import Conversation
from numaserve.server.http.fields.types import Neutral, Text, neutral
from numaserve.server.surfaces.ollama.options import OllamaFields


class OllamaGenerateRequest(OllamaFields):
    """The body of POST /api/generate."""

    prompt: Text | None = None
    """User message, or with `raw` the text to continue; without a prompt the model generates nothing."""
    system: Text | None = None
    """System message before the prompt."""
    suffix: Text | None = None
    """Text after the response, for models with fill-in-the-middle tokens. The server then applies no chat template."""
    raw: bool | None = None
    """Continue `prompt` verbatim, without the chat template."""

    template: Annotated[Neutral, neutral("")] = None
    context: Annotated[Neutral, neutral([])] = None
    images: Annotated[Neutral, neutral([], media="images")] = None

    def asked(self) -> Asked | None:
        """Return the request; None if the client only wants to load the model."""
        if not self.prompt:
            return None
        options = self.given_options
        return Asked(
            Texts([self.prompt], suffix=self.suffix or "")
            if self.raw or self.suffix
            else Chat(self._conversation(), self.template_arguments, param="prompt"),
            options.sampling(),
            model=self.model,
            default_max_tokens=options.most_output,
            logprobs=self.counted_logprobs,
            constrained=self.constrained,
        )

    def _conversation(self) -> Conversation:
        said = {"system": self.system, "user": self.prompt}
        turns = [{"role": role, "content": content} for role, content in said.items() if content]
        return Conversation(turns, sum(len(turn["content"]) for turn in turns), needs_tools=False)
