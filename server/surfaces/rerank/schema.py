"""The bodies of POST /v1/rerank and /v1/score."""

from __future__ import annotations

from typing import Annotated

from numaserve.server.http.fields.media import text_of
from numaserve.server.http.fields.types import (
    MAX_INT,
    Neutral,
    Priority,
    ShortText,
    Text,
    Unused,
    conflict,
    neutral,
)
from numaserve.server.surfaces.embedding_fields import MAX_INPUTS, ManyInputs
from pydantic import BeforeValidator, Field, model_validator


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


Documents = Annotated[list[Annotated[Text, BeforeValidator(text_of)]], Field(min_length=1, max_length=MAX_INPUTS)]
Texts = Annotated[list[Text], BeforeValidator(_as_list), Field(min_length=1, max_length=MAX_INPUTS)]


class _Judged(ManyInputs):
    """The fields that both requests share."""

    model: ShortText | None = None
    """Name of the served model; any other name returns status 404."""
    instruct: Text | None = None
    """Instruction for judging whether a document fits a query; the model's default instruction for web search unless
    set."""
    priority: Priority | None = None
    """Extension: priority among the client's own requests; lower numbers start first; 0 unless set."""

    user: Unused = None
    truncate_prompt_tokens: Annotated[Neutral, neutral()] = None


class RerankRequest(_Judged):
    """The body of POST /v1/rerank, in the format of Jina and Cohere; with `texts`, in the format of
    text-embeddings-inference."""

    query: Text
    """Query to rank the documents by."""
    documents: Documents | None = None
    """Documents to rank: strings, or objects with a field `text`."""
    texts: Annotated[list[Text], Field(min_length=1, max_length=MAX_INPUTS)] | None = None
    """The same in the format of text-embeddings-inference, which decides the format of the answer."""
    top_n: Annotated[int, Field(ge=1, le=MAX_INT)] | None = None
    """Number of best results to return; all unless set."""
    return_documents: bool | None = None
    """Return the documents with the results; true unless set."""
    max_tokens_per_doc: Annotated[int, Field(ge=1, le=MAX_INT)] | None = None
    """Maximum number of tokens per document; longer documents are truncated. Unless set, the server rejects documents
    that exceed the context length, but POST /v2/rerank truncates to 4096 tokens, and to the context length."""
    truncate: bool | None = None
    """Truncate a query and a document that exceed the context length together: the longer of both first. False unless
    set."""
    raw_scores: bool | None = None
    """With `texts`: return scores without a sigmoid; false unless set."""
    return_text: bool | None = None
    """With `texts`: return the texts with the scores; false unless set."""
    truncation_direction: Annotated[Neutral, neutral("Right", "right")] = None

    @model_validator(mode="after")
    def _one_format(self) -> RerankRequest:
        if (self.documents is None) == (self.texts is None):
            raise conflict("documents", "exactly one of 'documents' and 'texts' is needed")
        of_texts = (("raw_scores", self.raw_scores), ("return_text", self.return_text))
        of_documents = (("top_n", self.top_n), ("return_documents", self.return_documents))
        other = of_texts if self.texts is None else of_documents
        for name, value in other:
            if value is not None:
                kind = "documents" if self.texts is None else "texts"
                raise conflict(name, f"'{name}' does not belong to a request with '{kind}'")
        return self

    @property
    def ranked(self) -> list[str]:
        """The documents or texts."""
        return self.documents or self.texts or []

    @property
    def repeated(self) -> list[str]:
        """The documents or texts, if the answer repeats them."""
        returned = self.return_documents is not False if self.texts is None else self.return_text
        return self.ranked if returned else []


class ScoreRequest(_Judged):
    """The body of POST /v1/score, in vLLM's format."""

    text_1: Texts | None = None
    """One query, or one query per document; alternative name: `queries`."""
    text_2: Texts | None = None
    """One document or a list of documents; alternative name: `documents`."""
    queries: Texts | None = None
    """Alternative name of `text_1`."""
    documents: Texts | None = None
    """Alternative name of `text_2`."""

    @model_validator(mode="after")
    def _pairs(self) -> ScoreRequest:
        for one, other, names in ((self.text_1, self.queries, "text_1"), (self.text_2, self.documents, "text_2")):
            if (one is None) == (other is None):
                other_name = "queries" if names == "text_1" else "documents"
                raise conflict(names, f"exactly one of '{names}' and '{other_name}' is needed")
        queries, documents = len(self.text_1 or self.queries or ()), len(self.text_2 or self.documents or ())
        if queries not in (1, documents):
            raise conflict(
                "text_1",
                f"{queries} queries and {documents} documents cannot be paired; send one query or one per document",
            )
        return self

    def pairs(self) -> list[tuple[str, str]]:
        """Return each document with its query, as (query, document)."""
        queries, documents = self.text_1 or self.queries or [], self.text_2 or self.documents or []
        return list(zip(queries * (len(documents) if len(queries) == 1 else 1), documents, strict=True))
