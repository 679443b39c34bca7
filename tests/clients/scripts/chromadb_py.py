"""Chroma, with the embedding functions of OpenAI's API and of text-embeddings-inference."""

import chromadb
from checks import MODEL, check, expect
from chromadb.utils.embedding_functions import HuggingFaceEmbeddingServer, OpenAIEmbeddingFunction
from embedding_checks import OPENAI, TEI, TEXTS, all_same, check_vectors

FUNCTIONS = {
    "openai": OpenAIEmbeddingFunction(api_key="none", api_base=OPENAI, model_name=MODEL),
    "tei": HuggingFaceEmbeddingServer(url=TEI),
}
client = chromadb.EphemeralClient(chromadb.Settings(anonymized_telemetry=False))


def vectors(name: str) -> list[list[float]]:
    return [list(map(float, vector)) for vector in FUNCTIONS[name](TEXTS)]


@check("embeddings")
def embeddings() -> None:
    check_vectors(vectors("openai"))
    assert all_same(vectors("openai"), vectors("tei"))


@check("search")
def search() -> None:
    for name, function in FUNCTIONS.items():
        collection = client.create_collection(name, embedding_function=function)
        collection.add(ids=["a", "b", "c"], documents=TEXTS)
        found = collection.query(query_texts=[TEXTS[1], TEXTS[2]], n_results=2)
        assert [ids[0] for ids in found["ids"]] == ["b", "c"]
        assert all(distances[0] < 1e-3 < distances[1] for distances in found["distances"])


@check("errors")
def errors() -> None:
    other = OpenAIEmbeddingFunction(api_key="none", api_base=OPENAI, model_name="other")
    expect(Exception, lambda: other(["x"]), "does not exist")
