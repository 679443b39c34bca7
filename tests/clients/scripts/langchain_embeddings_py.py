"""LangChain's `OpenAIEmbeddings`."""

import asyncio

import openai
from checks import MODEL, check, expect
from embedding_checks import LONG, OPENAI, TEXTS, check_vectors, same
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import OpenAIEmbeddings

# With the check of the length it would send the token ids of a model of OpenAI.
SETTING = {"base_url": OPENAI, "api_key": "none", "max_retries": 0, "check_embedding_ctx_length": False}
client = OpenAIEmbeddings(model=MODEL, **SETTING)


@check("embeddings")
def embeddings() -> None:
    found = client.embed_documents(TEXTS)
    check_vectors(found)
    assert same(client.embed_query(TEXTS[1]), found[1])
    assert same(asyncio.run(client.aembed_query(TEXTS[2])), found[2])
    check_vectors(OpenAIEmbeddings(model=MODEL, dimensions=16, **SETTING).embed_documents(TEXTS), 16)


@check("truncation")
def truncation() -> None:
    cut = OpenAIEmbeddings(model=MODEL, model_kwargs={"extra_body": {"truncate": True}}, **SETTING)
    assert same(cut.embed_query(LONG), cut.embed_query(LONG * 2))


@check("search")
def search() -> None:
    store = InMemoryVectorStore.from_texts(TEXTS, client)
    ((found, score),) = store.similarity_search_with_score(TEXTS[1], k=1)
    assert (found.page_content, score > 0.999) == (TEXTS[1], True)


@check("errors")
def errors() -> None:
    other = OpenAIEmbeddings(model="other", **SETTING)
    expect(openai.NotFoundError, lambda: other.embed_query("x"), "does not exist")
