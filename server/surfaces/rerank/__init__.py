"""Scores of documents for queries, by a model that answers yes or no: vLLM's scores, Jina's and Cohere's ranking."""
