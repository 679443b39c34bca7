"""`CohereRerank` of `langchain-cohere`."""

from checks import MODEL, URL, check, expect
from cohere.errors import NotFoundError
from langchain_cohere import CohereRerank
from langchain_core.documents import Document

QUERY = "the quick fox"
TEXTS = ["The quick brown fox", "leading and inner spaces", "lazy dogs", "inner"]
LONG = "quick brown fox " * 200  # more tokens than the reranker's context has


def ranker(**more: object) -> CohereRerank:
    return CohereRerank(**{"model": MODEL, "cohere_api_key": "none", "base_url": URL} | more)


@check("ranking")
def ranking() -> None:
    documents = [Document(text, metadata={"at": index}) for index, text in enumerate(TEXTS)]
    found = ranker(top_n=3).compress_documents(documents, QUERY)
    scores = [document.metadata["relevance_score"] for document in found]
    assert len(set(scores)) == 3
    assert scores == sorted(scores, reverse=True)
    assert all(TEXTS[document.metadata["at"]] == document.page_content for document in found)
    everything = ranker().rerank(TEXTS, QUERY, top_n=None)
    assert [each["index"] for each in everything[:3]] == [document.metadata["at"] for document in found]
    assert len(everything) == 4


@check("truncation")
def truncation() -> None:
    (long,) = ranker().rerank([LONG], QUERY)
    (short,) = ranker().rerank([LONG], QUERY, max_tokens_per_doc=5)
    (same,) = ranker().rerank([LONG + LONG], QUERY, max_tokens_per_doc=5)
    assert short["relevance_score"] == same["relevance_score"] != long["relevance_score"]


@check("errors")
def errors() -> None:
    expect(NotFoundError, lambda: ranker(model="other").rerank(["y"], "x"), "does not exist")
