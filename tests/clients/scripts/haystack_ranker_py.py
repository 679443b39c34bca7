"""Haystack: the ranker of text-embeddings-inference."""

import os

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"

from checks import URL, check
from haystack import Document
from haystack.utils import Secret
from haystack_integrations.components.rankers.huggingface_api import HuggingFaceTEIRanker

QUERY = "the quick fox"
TEXTS = ["The quick brown fox", "leading and inner spaces", "lazy dogs", "inner"]
DOCUMENTS = [Document(content=text) for text in TEXTS]


@check("ranking")
def ranking() -> None:
    ranker = HuggingFaceTEIRanker(url=URL, top_k=3, raw_scores=False, token=Secret.from_token("none"))
    found = ranker.run(query=QUERY, documents=DOCUMENTS)["documents"]
    scores = [document.score for document in found]
    assert len(found) == 3
    assert scores == sorted(scores, reverse=True)
    assert {document.content for document in found} < set(TEXTS)
