"""LlamaIndex: the ranker of text-embeddings-inference."""

from checks import URL, check
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.postprocessor.tei_rerank import TextEmbeddingInference

QUERY = "the quick fox"
TEXTS = ["The quick brown fox", "leading and inner spaces", "lazy dogs", "inner"]


@check("ranking")
def ranking() -> None:
    nodes = [NodeWithScore(node=TextNode(text=text), score=0.0) for text in TEXTS]
    found = TextEmbeddingInference(base_url=URL, top_n=3).postprocess_nodes(nodes, query_str=QUERY)
    scores = [each.score for each in found]
    assert len(set(scores)) == 3
    assert all(0 < score < 1 for score in scores)
    assert scores == sorted(scores, reverse=True)
    assert {each.text for each in found} < set(TEXTS)
