"""`llama-index` with `OpenAIEmbedding` and `TextEmbeddingsInference`."""

import asyncio

import openai
from checks import MODEL, URL, check, expect
from embedding_checks import LONG, OPENAI, TEXTS, all_same, check_vectors, same
from llama_index.core import Document, VectorStoreIndex
from llama_index.embeddings.openai import OpenAIEmbedding
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference

SETTING = {"api_base": OPENAI, "api_key": "none", "max_retries": 0}
of_openai = OpenAIEmbedding(model_name=MODEL, **SETTING)
of_tei = TextEmbeddingsInference(base_url=URL, model_name=MODEL)
BOTH = (of_openai, of_tei)


@check("embeddings")
def embeddings() -> None:
    found = of_openai.get_text_embedding_batch(TEXTS)
    check_vectors(found)
    assert all_same(found, of_tei.get_text_embedding_batch(TEXTS))
    for each in BOTH:
        assert same(each.get_text_embedding(TEXTS[1]), found[1])
        assert same(asyncio.run(each.aget_text_embedding(TEXTS[2])), found[2])
    short = OpenAIEmbedding(model_name=MODEL, dimensions=16, **SETTING)
    check_vectors(short.get_text_embedding_batch(TEXTS), 16)


@check("truncation")
def truncation() -> None:
    assert same(of_tei.get_text_embedding(LONG), of_tei.get_text_embedding(LONG * 2))


@check("search")
def search() -> None:
    for each in BOTH:
        index = VectorStoreIndex.from_documents([Document(text=text) for text in TEXTS], embed_model=each)
        (found,) = index.as_retriever(similarity_top_k=1).retrieve(TEXTS[1])
        assert found.text == TEXTS[1]


@check("errors")
def errors() -> None:
    other = OpenAIEmbedding(model_name="other", **SETTING)
    expect(openai.NotFoundError, lambda: other.get_text_embedding("x"), "does not exist")
