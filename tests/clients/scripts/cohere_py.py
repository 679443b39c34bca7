"""The `cohere` package for Python, for embeddings."""

import asyncio
import base64
import struct

import cohere
from checks import MODEL, URL, check, expect
from cohere.errors import BadRequestError, NotFoundError
from embedding_checks import LONG, SIZE, TEXTS, all_same, check_vectors, same

client = cohere.ClientV2("none", base_url=URL)
QUERY = {"model": MODEL, "input_type": "search_query"}
FLOATS = {"embedding_types": ["float"]}


@check("embeddings")
def embeddings() -> None:
    answer = client.embed(texts=TEXTS, **QUERY, **FLOATS)
    assert answer.id
    assert answer.texts == TEXTS
    assert answer.meta.billed_units.input_tokens > 0
    check_vectors(answer.embeddings.float_)
    documents = client.embed(texts=TEXTS, model=MODEL, input_type="search_document", **FLOATS)
    assert not same(documents.embeddings.float_[0], answer.embeddings.float_[0])
    short = client.embed(texts=TEXTS, **QUERY, output_dimension=16, embedding_types=["float"])
    check_vectors(short.embeddings.float_, 16)


@check("embeddings")
def embeddings_of_each_type() -> None:
    found = client.embed(texts=TEXTS, **QUERY, embedding_types=["float", "binary", "ubinary", "base64"]).embeddings
    decoded = [list(struct.unpack(f"<{SIZE}f", base64.b64decode(each))) for each in found.base64]
    assert all_same(decoded, found.float_)
    for values, signed, unsigned in zip(found.float_, found.binary, found.ubinary, strict=True):
        assert [byte + 128 for byte in signed] == unsigned
        assert [byte >> 7 for byte in unsigned] == [int(value > 0) for value in values[::8]]


@check("embeddings")
def embeddings_of_objects_and_of_a_coroutine() -> None:
    inputs = [{"content": [{"type": "text", "text": text}]} for text in TEXTS]
    found = client.embed(inputs=inputs, **QUERY, **FLOATS).embeddings.float_

    async def asked() -> list[list[float]]:
        async with cohere.AsyncClientV2("none", base_url=URL) as another:
            return (await another.embed(texts=TEXTS, **QUERY, **FLOATS)).embeddings.float_

    assert all_same(found, asyncio.run(asked()))


@check("truncation")
def truncation() -> None:
    start, end = (
        client.embed(texts=[LONG], **QUERY, **FLOATS, max_tokens=9, truncate=part) for part in ("START", "END")
    )
    assert start.meta.billed_units.input_tokens == end.meta.billed_units.input_tokens == 9
    check_vectors([start.embeddings.float_[0], end.embeddings.float_[0]])
    assert client.embed(texts=[LONG], **QUERY, **FLOATS).meta.billed_units.input_tokens > 9


@check("errors")
def errors() -> None:
    other = QUERY | {"model": "other"}
    expect(NotFoundError, lambda: client.embed(texts=["x"], **other), "does not exist")
    expect(BadRequestError, lambda: client.embed(texts=["x"], **QUERY, embedding_types=["int8"]), "int8 needs")
    expect(BadRequestError, lambda: client.embed(images=["data:image/png;base64,AA=="], **QUERY), "images")
