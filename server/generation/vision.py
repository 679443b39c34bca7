"""The image input of the served model, as requests use it."""

from dataclasses import dataclass

from numaserve.server.images.decoder import ImageDecoder
from numaserve.server.images.expansion import Expansion
from numaserve.server.tokenizer.types import TokenizerError, TokenizerProtocol
from numaserve.workers.interface.images import ImageInput


@dataclass(frozen=True)
class Vision:
    """A model's image input: the settings of its processor, the decoder, and the text of an image in a prompt."""

    settings: ImageInput
    placeholder: str  # the text of the token `settings.token`
    decoder: ImageDecoder
    expansion: Expansion

    @property
    def marker(self) -> str:
        """The text that chat templates write for an image."""
        return self.expansion.marker or self.placeholder

    @property
    def reserved(self) -> tuple[str, ...]:
        """The texts that stand for images or their rows, which no other text may have."""
        return tuple(dict.fromkeys((self.marker, self.placeholder)))


def special_text(token: int, tokenizer: TokenizerProtocol) -> str:
    """Return the text of a token that stands for an image or next to one. Raises `TokenizerError` for a token that is
    not special, which texts without images may have, and for one whose text is read as others."""
    text = tokenizer.token_text(token)
    if token not in tokenizer.special_token_ids or tokenizer.encode(text, add_special_tokens=False) != [token]:
        raise TokenizerError(
            f"the token {token}, which stands for an image or next to one, is no special token of the tokenizer (its"
            f" text is {text!r}); download the tokenizer's files again"
        )
    return text
