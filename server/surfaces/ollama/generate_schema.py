"""The body of POST /api/generate."""

from __future__ import annotations

from typing import Annotated

from numaserve.server.generation.asked import Asked, Chat, Texts
from numaserve.server.generation.conversation.images import Image, Images, taken_out
from numaserve.server.generation.conversation.messages import Conversation
from numaserve.server.generation.conversation.turns import conversation_from
from numaserve.server.http.fields.types import Neutral, Text, conflict, neutral
from numaserve.server.surfaces.image_parts import images_of, with_images
from numaserve.server.surfaces.ollama.options import OllamaFields
from pydantic import model_validator


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
    images: Annotated[Images, images_of("images")] | None = None
    """Images in base64; the model sees them before the prompt."""

    @model_validator(mode="after")
    def _images_have_places(self) -> OllamaGenerateRequest:
        if self._images and self.suffix:
            raise conflict("images", "'images' cannot be sent together with 'suffix'; leave out one of them")
        return self

    def asked(self) -> Asked | None:
        """Return the request; None if the client only wants to load the model."""
        if not self.prompt:
            return None
        options = self.given_options
        return Asked(
            Texts([self.prompt], suffix=self.suffix or "", images=self._images)
            if self.raw or self.suffix
            else Chat(self._conversation(), self.template_arguments, param="prompt"),
            options.sampling(),
            model=self.model,
            default_max_tokens=options.most_output,
            logprobs=self.counted_logprobs,
            constrained=self.constrained,
        )

    @property
    def _images(self) -> list[Image]:
        return [] if self.images is None else self.images.images

    def _conversation(self) -> Conversation:
        said = {"system": self.system, "user": with_images(self._images, self.prompt or "")}
        turns = [{"role": role, "content": content} for role, content in said.items() if content]
        return conversation_from(turns, taken_out(turns))
