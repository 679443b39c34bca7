"""The image input of the served model, as requests use it."""

from dataclasses import dataclass

from numaserve.server.images.decoder import ImageDecoder
from numaserve.server.images.expansion import IDEFICS3, Expansion
from numaserve.workers.interface.images import ImageInput


@dataclass(frozen=True)
class Vision:
    """A model's image input: the settings of its processor, the decoder, and the text of an image in a prompt."""

    settings: ImageInput
    placeholder: str  # the text of the token `settings.token`
    decoder: ImageDecoder
    expansion: Expansion = IDEFICS3
