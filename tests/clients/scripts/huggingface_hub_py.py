"""The `huggingface_hub` package's client of text-embeddings-inference."""

import asyncio

from checks import check, expect
from embedding_checks import LONG, SIZE, TEI, TEXTS, all_same, check_vectors, same
from huggingface_hub import AsyncInferenceClient, InferenceClient
from huggingface_hub.errors import HfHubHTTPError

client = InferenceClient(TEI, token="none")


def embed(given: str | list[str], **more: object) -> list[list[float]]:
    return client.feature_extraction(given, **more).tolist()


@check("embeddings")
def embeddings() -> None:
    found = embed(TEXTS)
    check_vectors(found)
    assert same(embed(TEXTS[1])[0], found[1])
    check_vectors(embed(TEXTS, normalize=True, dimensions=16), 16)
    assert not same(embed(TEXTS[0], prompt_name="query")[0], found[0])
    asked = AsyncInferenceClient(TEI, token="none").feature_extraction(TEXTS)
    assert all_same(asyncio.run(asked).tolist(), found)


@check("truncation")
def truncation() -> None:
    ends = [embed(LONG, truncate=True, truncation_direction=side)[0] for side in ("left", "right")]
    check_vectors(ends)
    assert same(embed(LONG, truncate=True)[0], ends[1])


@check("errors")
def errors() -> None:
    expect(HfHubHTTPError, lambda: embed("x", dimensions=SIZE + 1), "'dimensions' is 73")
    expect(HfHubHTTPError, lambda: embed("x", prompt_name="passage"), "this model's prompts are")
