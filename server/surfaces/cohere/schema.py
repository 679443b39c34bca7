"""The body of POST /v2/embed."""

from __future__ import annotations

from typing import Annotated, Literal

from numaserve.server.generation.asked import Asked, Length, Texts
from numaserve.server.generation.embedding_prompts import InputType, prompted
from numaserve.server.generation.embedding_settings import EmbeddingSettings, Form
from numaserve.server.generation.token_choice import Sampling
from numaserve.server.http.fields.media import takes_no
from numaserve.server.http.fields.typed import only_types
from numaserve.server.http.fields.types import (
    MAX_INT,
    Neutral,
    Priority,
    ShortText,
    Strict,
    Text,
    conflict,
    made_of,
    neutral,
)
from numaserve.server.surfaces.embedding_fields import MAX_INPUTS, Dimensions, ManyInputs, check_not_empty
from pydantic import BeforeValidator, Field, model_validator

_CUT: dict[str, Literal["start", "end"] | None] = {"NONE": None, "START": "start", "END": "end"}


class TextContent(Strict):
    """The only part of an input."""

    type: Literal["text"]
    text: Text


class CohereInput(Strict):
    """An input as an object."""

    content: Annotated[list[Annotated[TextContent, only_types(("text",))]], Field(min_length=1, max_length=1)]

    def whole(self) -> str:
        """Return the text."""
        return self.content[0].text


def _no_images(value: object) -> object:
    if value == "image":
        raise ValueError(takes_no("images"))
    return value


def _no_calibration(value: object) -> object:
    """Refuse the forms that need a measured range of each dimension: checkpoints have none."""
    if value in ("int8", "uint8"):
        raise ValueError(
            f"{value} needs the range of each dimension, which this model's files do not have; use 'float'"
        )
    return value


class CohereEmbedRequest(ManyInputs):
    """The body of POST /v2/embed."""

    model: ShortText | None = None
    """Name of the served model; any other name returns status 404."""
    texts: Annotated[list[Text], Field(min_length=1, max_length=MAX_INPUTS)] | None = None
    """Texts to embed; required unless `inputs` is set."""
    inputs: (
        Annotated[
            list[Annotated[str, made_of(CohereInput, CohereInput.whole)]], Field(min_length=1, max_length=MAX_INPUTS)
        ]
        | None
    ) = None
    """Texts to embed as objects: `{"content": [{"type": "text", "text": "..."}]}`."""
    input_type: Annotated[InputType, BeforeValidator(_no_images)] | None = None
    """Use of the texts, which chooses the model's prompt for this use. The model's default prompt applies where it has
    none for this use, and unless set."""
    embedding_types: (
        Annotated[list[Annotated[Form, BeforeValidator(_no_calibration)]], Field(min_length=1, max_length=16)] | None
    ) = None
    """Forms of the embeddings: `float`, `base64` (little-endian 32-bit floats), `ubinary` or `binary`; `float` unless
    set. `ubinary` holds one bit per dimension in bytes from 0 to 255. `binary` holds the same bytes minus 128."""
    output_dimension: Dimensions | None = None
    """Number of leading dimensions to return of each embedding; all unless set."""
    truncate: Literal["NONE", "START", "END"] | None = None
    """Part of a text that is left out if the text exceeds `max_tokens` or the context length; `NONE` refuses such a
    text; `END` unless set."""
    max_tokens: Annotated[int, Field(ge=1, le=MAX_INT)] | None = None
    """Maximum number of tokens per text, special tokens included; the context length unless set."""
    priority: Priority | None = None
    """Priority among the client's own requests; lower numbers start first; 0 unless set."""

    images: Annotated[Neutral, neutral(media="images")] = None

    @model_validator(mode="after")
    def _one_kind_of_input(self) -> CohereEmbedRequest:
        if (self.texts is None) == (self.inputs is None):
            raise conflict("texts", "exactly one of 'texts' and 'inputs' is needed")
        return self

    @property
    def forms(self) -> list[Form]:
        """The forms of the embeddings, each once."""
        return list(dict.fromkeys(self.embedding_types or ("float",)))

    @property
    def given(self) -> list[str]:
        """The texts as the client sent them."""
        return self.texts or self.inputs or []

    def asked(self, settings: EmbeddingSettings) -> Asked:
        """Return the request in the form that all APIs share. Raises `ApiError` for an empty text."""
        param = "texts" if self.texts else "inputs"
        check_not_empty(self.given, param)
        length = Length(self.max_tokens, _CUT[self.truncate or "END"], "max_tokens")
        texts = Texts(
            prompted(settings, self.given, {"input_type": self.input_type}, param), length=length, param=param
        )
        return Asked(texts, Sampling(), model=self.model, pool="whole", priority=self.priority or 0)
