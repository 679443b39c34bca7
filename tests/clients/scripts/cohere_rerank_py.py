"""The `cohere` package for Python, for ranking."""

import cohere
from checks import MODEL, URL, check, expect
from cohere.errors import NotFoundError

client = cohere.ClientV2("none", base_url=URL)
QUERY = "the quick fox"
DOCUMENTS = ["The quick brown fox", "leading and inner spaces", "lazy dogs", "inner"]
LONG = "quick brown fox " * 200  # more tokens than the reranker's context has


@check("ranking")
def ranking() -> None:
    answer = client.rerank(model=MODEL, query=QUERY, documents=DOCUMENTS)
    scores = [each.relevance_score for each in answer.results]
    assert sorted(each.index for each in answer.results) == [0, 1, 2, 3]
    assert scores == sorted(scores, reverse=True)
    assert all(0 < score < 1 for score in scores)
    assert len(set(scores)) == len(scores)
    best = client.rerank(model=MODEL, query=QUERY, documents=DOCUMENTS, top_n=2).results
    assert [each.index for each in best] == [each.index for each in answer.results[:2]]


@check("truncation")
def truncation() -> None:
    (long,) = client.rerank(model=MODEL, query=QUERY, documents=[LONG]).results
    (short,) = client.rerank(model=MODEL, query=QUERY, documents=[LONG], max_tokens_per_doc=5).results
    (same,) = client.rerank(model=MODEL, query=QUERY, documents=[LONG + LONG], max_tokens_per_doc=5).results
    assert 0 < long.relevance_score < 1
    assert short.relevance_score == same.relevance_score != long.relevance_score


@check("errors")
def errors() -> None:
    expect(NotFoundError, lambda: client.rerank(model="other", query="x", documents=["y"]), "does not exist")
