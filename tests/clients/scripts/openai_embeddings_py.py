"""The `openai` package for Python, for embeddings."""

import asyncio

import openai
from checks import MODEL, check, expect
from embedding_checks import LONG, OPENAI, SIZE, TEXTS, all_same, check_vectors, same

SETTING = {"base_url": OPENAI, "api_key": "none", "max_retries": 0, "timeout": 120}
client = openai.OpenAI(**SETTING)


def embed(given: object, **more: object) -> list[list[float]]:
    return [item.embedding for item in client.embeddings.create(model=MODEL, input=given, **more).data]


@check("models")
def models() -> None:
    assert [model.id for model in client.models.list()] == [MODEL]


@check("embeddings")
def embeddings() -> None:
    answer = client.embeddings.create(model=MODEL, input=TEXTS)
    assert [item.index for item in answer.data] == [0, 1, 2]
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 0
    found = [item.embedding for item in answer.data]
    check_vectors(found)
    assert all_same(found, embed(TEXTS, encoding_format="float"))
    assert same(embed(TEXTS[0])[0], found[0])
    check_vectors(embed(TEXTS, dimensions=16), 16)
    assert embed([5, 6, 7]) != embed([[5, 6, 8]])


@check("embeddings")
def embeddings_of_a_coroutine() -> None:
    async def asked() -> openai.types.CreateEmbeddingResponse:
        async with openai.AsyncOpenAI(**SETTING) as another:
            return await another.embeddings.create(model=MODEL, input=TEXTS[0])

    assert same(asyncio.run(asked()).data[0].embedding, embed(TEXTS[0])[0])


@check("embeddings")
def fields_of_other_servers() -> None:
    plain = embed(TEXTS[0])[0]
    for body in ({"input_type": "query"}, {"prompt_name": "query"}, {"task": "retrieval.query"}):
        assert not same(embed(TEXTS[0], extra_body=body)[0], plain)
    (bits,) = embed(TEXTS[0], extra_body={"embedding_type": "ubinary"})
    assert len(bits) == SIZE // 8
    assert [int(byte) >> 7 for byte in bits] == [int(value > 0) for value in plain[::8]]


@check("truncation")
def truncation() -> None:
    (left,), (right,), (whole,) = (
        embed(LONG, extra_body={"truncate_prompt_tokens": tokens, **side})
        for tokens, side in ((9, {"truncation_side": "left"}), (9, {}), (-1, {}))
    )
    check_vectors([left, right, whole])


@check("errors")
def errors() -> None:
    expect(openai.NotFoundError, lambda: client.embeddings.create(model="other", input="x"), "does not exist")
    expect(openai.BadRequestError, lambda: embed("x", dimensions=SIZE + 1), "'dimensions' is 73")
