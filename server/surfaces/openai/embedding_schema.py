"""The body of POST /v1/embeddings."""

from __future__ import annotations

from typing import Annotated, Literal

from numaserve.server.generation.asked import Asked, Length, Texts
from numaserve.server.generation.embedding_prompts import InputType, Task, prompted
from numaserve.server.generation.embedding_settings import EmbeddingSettings, Form
from numaserve.server.generation.token_choice import Sampling
from numaserve.server.http.fields.media import text_of
from numaserve.server.http.fields.types import MAX_INT, Neutral, Priority, ShortText, Unused, conflict, neutral
from numaserve.server.surfaces.embedding_fields import Dimensions, ManyInputs
from numaserve.server.surfaces.openai.completion_schema import Prompts
from numaserve.workers.interface.protocol import VectorForm
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

_WHOLE_CONTEXT = -1
_LIMIT, _VECTORS = "truncate_prompt_tokens", "return_multivector"


def _texts_of_objects(value: object) -> object:
    """Replace Jina's objects by their texts. Raises `ValueError` for an object with other input."""
    return [text_of(item) for item in value] if isinstance(value, list) else text_of(value)


def _not_zero(value: int) -> int:
    if value == 0:
        raise conflict("", "0 tokens cannot be embedded; send -1 for the context length, or a number from 1")
    return value


class EmbeddingRequest(ManyInputs):
    """The body of POST /v1/embeddings."""

    model: ShortText | None = None
    """Name of the served model; any other name returns status 404."""
    input: Annotated[Prompts, BeforeValidator(_texts_of_objects)]
    """Input as a string or a list of token ids; several inputs as a list of either. Objects with a field `text` count
    as strings. The tokenizer adds its special tokens to strings only."""
    dimensions: Dimensions | None = None
    """Number of leading dimensions to return of each embedding; all unless set."""
    encoding_format: Literal["float", "base64"] | None = None
    """Encoding of embeddings: `float`, a list of numbers, or `base64`, little-endian 32-bit floats; `float` unless
    set."""
    embedding_type: Form | None = None
    """Extension of Jina, in place of `encoding_format`: `float`, `base64`, `ubinary` or `binary`. `ubinary` holds one
    bit per dimension in bytes from 0 to 255. `binary` holds the same bytes minus 128."""
    normalize: bool | None = None
    """Extension of vLLM: scale embeddings to length 1 after cutting them to `dimensions`. Unless set, the model's
    sentence-transformers files decide; true without these files."""
    normalized: bool | None = None
    """Jina's name of `normalize`."""
    prompt_name: ShortText | None = None
    """Extension: name of the prompt that precedes each text, one of `prompts` in the model's
    config_sentence_transformers.json; the model's default prompt unless set."""
    input_type: InputType | None = None
    """Extension: use of the texts, which chooses the model's prompt for this use, such as `query` or `document`. The
    model's default prompt applies where it has none for this use."""
    task: Task | None = None
    """Extension of Jina: the same as `input_type`, by Jina's names."""
    truncate: bool | None = None
    """Extension of Jina: leave out the end of an input that exceeds the context length; false unless set."""
    truncate_prompt_tokens: Annotated[int, Field(ge=_WHOLE_CONTEXT, le=MAX_INT), AfterValidator(_not_zero)] | None = (
        None
    )
    """Extension of vLLM: maximum number of tokens of an input, special tokens included; -1 for the context length.
    Longer inputs are truncated. Unless set, they are refused."""
    truncation_side: Literal["left", "right"] | None = None
    """Extension of vLLM: part of a truncated input that is left out: `left`, its start, or `right`, its end; `right`
    unless set."""
    return_multivector: bool | None = None
    """Extension of Jina: return a vector of each token after the first, in `embeddings`, in place of one embedding;
    false unless set. Needs a model with such vectors, such as BGE-M3."""
    priority: Priority | None = None
    """Extension: priority among the client's own requests; lower numbers start first; 0 unless set."""

    user: Unused = None
    add_special_tokens: Annotated[Neutral, neutral(True)] = None
    embed_dtype: Annotated[Neutral, neutral("float32")] = None
    endianness: Annotated[Neutral, neutral("native", "little")] = None
    late_chunking: Annotated[Neutral, neutral(False)] = None

    @model_validator(mode="after")
    def _fields_fit_together(self) -> EmbeddingRequest:
        if self.normalize is not None and self.normalized not in (None, self.normalize):
            raise conflict("normalized", "'normalize' and 'normalized' contradict each other; send one of them")
        if self.truncate is False and self.truncate_prompt_tokens is not None:
            raise conflict("truncate", f"'truncate' is false, but '{_LIMIT}' truncates inputs; send one of them")
        if self.return_multivector and self.dimensions is not None:
            raise conflict("dimensions", f"vectors of tokens cannot be cut; leave 'dimensions' or '{_VECTORS}' out")
        return self

    @property
    def form(self) -> Form:
        """The form of embeddings. OpenAI's clients always send an `encoding_format`."""
        return self.embedding_type or self.encoding_format or "float"

    def normalizes(self, settings: EmbeddingSettings) -> bool:
        """Return whether embeddings are scaled to length 1. Vectors of tokens are, whatever the files say."""
        given = self.normalized if self.normalize is None else self.normalize
        if self.return_multivector and given is None:
            return True
        return settings.normalize if given is None else given

    def asked(self, settings: EmbeddingSettings) -> Asked:
        """Return the request in the form that all APIs share. Raises `ApiError` for a prompt that the model lacks."""
        choices = {"prompt_name": self.prompt_name, "input_type": self.input_type, "task": self.task}
        texts = Texts(prompted(settings, self.input, choices, "input"), length=self._length(), param="input")
        form: VectorForm = "tokens" if self.return_multivector else "whole"
        return Asked(texts, Sampling(), model=self.model, pool=form, priority=self.priority or 0)

    def _length(self) -> Length:
        tokens = self.truncate_prompt_tokens
        if tokens is None and not self.truncate:
            return Length()
        cut: Literal["start", "end"] = "start" if self.truncation_side == "left" else "end"
        return Length(None if tokens == _WHOLE_CONTEXT else tokens, cut, _LIMIT)
