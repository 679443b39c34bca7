"""Haystack: the embedders of OpenAI's API and of text-embeddings-inference."""

import os

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"

import openai
from checks import MODEL, check, expect
from embedding_checks import LONG, OPENAI, TEI, TEXTS, check_vectors, same
from haystack import Document
from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
from haystack.document_stores.in_memory import InMemoryDocumentStore
from haystack.utils import Secret
from haystack_integrations.components.embedders.huggingface_api import (
    HuggingFaceAPIDocumentEmbedder,
    HuggingFaceAPITextEmbedder,
)

KEY = Secret.from_token("none")
OF_OPENAI = {"api_key": KEY, "model": MODEL, "api_base_url": OPENAI, "max_retries": 0}
# Without `normalize` Haystack asks for vectors of any length.
OF_TEI = {"api_type": "text_embeddings_inference", "api_params": {"url": TEI}, "token": KEY, "normalize": True}
EMBEDDERS = (
    (OpenAITextEmbedder(**OF_OPENAI), OpenAIDocumentEmbedder(**OF_OPENAI)),
    (HuggingFaceAPITextEmbedder(**OF_TEI), HuggingFaceAPIDocumentEmbedder(**OF_TEI)),
)


@check("embeddings")
def embeddings() -> None:
    for of_text, of_documents in EMBEDDERS:
        documents = of_documents.run([Document(content=text) for text in TEXTS])["documents"]
        found = [document.embedding for document in documents]
        check_vectors(found)
        assert same(of_text.run(TEXTS[1])["embedding"], found[1])
    short = OpenAITextEmbedder(**OF_OPENAI, dimensions=16)
    check_vectors([short.run(text)["embedding"] for text in TEXTS], 16)


@check("truncation")
def truncation() -> None:
    cut = HuggingFaceAPITextEmbedder(**OF_TEI, truncate=True)
    assert same(cut.run(LONG)["embedding"], cut.run(LONG * 2)["embedding"])


@check("search")
def search() -> None:
    for of_text, of_documents in EMBEDDERS:
        store = InMemoryDocumentStore(embedding_similarity_function="cosine")
        store.write_documents(of_documents.run([Document(content=text) for text in TEXTS])["documents"])
        retriever = InMemoryEmbeddingRetriever(store, top_k=1)
        (found,) = retriever.run(query_embedding=of_text.run(TEXTS[1])["embedding"])["documents"]
        assert found.content == TEXTS[1]


@check("errors")
def errors() -> None:
    other = OpenAITextEmbedder(**OF_OPENAI | {"model": "other"})
    expect(openai.NotFoundError, lambda: other.run("x"), "does not exist")
