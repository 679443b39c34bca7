"""The bodies of POST /embed, /embed_sparse and /predict."""

from __future__ import annotations

from typing import Annotated, Literal, cast

from numaserve.server.generation.asked import Asked, Item, Length, Texts
from numaserve.server.generation.embedding_prompts import prompted
from numaserve.server.generation.embedding_settings import EmbeddingSettings
from numaserve.server.generation.token_choice import Sampling
from numaserve.server.http.fields.types import Neutral, ShortText, Text, neutral
from numaserve.server.surfaces.embedding_fields import MAX_INPUTS, Dimensions, ManyInputs, check_not_empty
from numaserve.server.surfaces.openai.completion_schema import Prompts
from numaserve.workers.interface.protocol import VectorForm
from pydantic import Field

# A text, or a pair of texts, in a list.
_Sequence = Annotated[list[Text], Field(min_length=1, max_length=2)]


class _EmbeddedInputs(ManyInputs):
    model: ShortText | None = None
    """Extension: name of the served model; any other name returns status 404."""
    inputs: Prompts
    """Input as a string or a list of token ids; several inputs as a list of either. The tokenizer adds its special
    tokens to strings only."""
    truncate: bool | None = None
    """Truncate inputs that exceed the context length; false unless set."""
    truncation_direction: Literal["Left", "Right", "left", "right"] | None = None
    """Part of a truncated input that is left out: `Left`, its start, or `Right`, its end; `Right` unless set."""
    prompt_name: ShortText | None = None
    """Name of the prompt that precedes each text, one of `prompts` in the model's config_sentence_transformers.json;
    the model's default prompt unless set."""

    def asked(self, settings: EmbeddingSettings, form: VectorForm = "whole") -> Asked:
        """Return the request for vectors in a form. Raises `ApiError` for an empty text, and for a prompt that the
        model lacks."""
        check_not_empty(self.inputs, "inputs")
        cut: Literal["start", "end"] = "start" if self.truncation_direction in ("Left", "left") else "end"
        length = Length(cut=cut if self.truncate else None)
        prompts = prompted(settings, self.inputs, {"prompt_name": self.prompt_name}, "inputs")
        texts = Texts(prompts, length=length, param="inputs")
        return Asked(texts, Sampling(), model=self.model, pool=form)


class TeiEmbedRequest(_EmbeddedInputs):
    """The body of POST /embed."""

    normalize: bool | None = None
    """Scale embeddings to length 1 after cutting them to `dimensions`; true unless set."""
    dimensions: Dimensions | None = None
    """Number of leading dimensions to return of each embedding; all unless set."""


class TeiEmbedSparseRequest(_EmbeddedInputs):
    """The body of POST /embed_sparse."""


class TeiPredictRequest(ManyInputs):
    """The body of POST /predict."""

    model: ShortText | None = None
    """Extension: name of the served model; any other name returns status 404."""
    inputs: Text | _Sequence | Annotated[list[_Sequence], Field(min_length=1, max_length=MAX_INPUTS)]
    """Text, or a list of one text or of the two texts of a pair. A list of such lists is a batch."""
    truncate: bool | None = None
    """Truncate inputs that exceed the context length: of a pair the longer text first. False unless set."""
    truncation_direction: Annotated[Neutral, neutral("Right", "right")] = None
    raw_scores: bool | None = None
    """Return logits in place of probabilities; false unless set."""

    @property
    def is_batch(self) -> bool:
        """Whether `inputs` is a list of inputs."""
        return isinstance(self.inputs[0], list)

    @property
    def items(self) -> list[Item]:
        """The texts and pairs."""
        if isinstance(self.inputs, str):
            return [self.inputs]
        listed = cast("list[list[str]]", self.inputs if self.is_batch else [self.inputs])
        return [(each[0], each[1]) if len(each) == 2 else each[0] for each in listed]
