"""`qdrant-client` in memory, with vectors of the server."""

import httpx
from checks import MODEL, check
from embedding_checks import OPENAI, SIZE, TEI, TEXTS, check_vectors
from qdrant_client import QdrantClient
from qdrant_client.models import Distance, PointStruct, VectorParams

client = QdrantClient(":memory:")


def of_openai(texts: list[str]) -> list[list[float]]:
    answer = httpx.post(f"{OPENAI}/embeddings", json={"model": MODEL, "input": texts}, timeout=60)
    return [item["embedding"] for item in answer.raise_for_status().json()["data"]]


def of_tei(texts: list[str]) -> list[list[float]]:
    return list(httpx.post(TEI, json={"inputs": texts}, timeout=60).raise_for_status().json())


@check("embeddings")
def embeddings() -> None:
    for embed in (of_openai, of_tei):
        check_vectors(embed(TEXTS))


@check("search")
def search() -> None:
    for name, embed in (("openai", of_openai), ("tei", of_tei)):
        client.create_collection(name, vectors_config=VectorParams(size=SIZE, distance=Distance.COSINE))
        points = zip(embed(TEXTS), TEXTS, strict=True)
        client.upsert(
            name,
            [PointStruct(id=id, vector=vector, payload={"text": text}) for id, (vector, text) in enumerate(points)],
        )
        (query,) = embed([TEXTS[1]])
        best, second = client.query_points(name, query=query, limit=2).points
        assert best.payload == {"text": TEXTS[1]}
        assert best.score > 0.999 > second.score
