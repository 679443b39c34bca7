"""Cohere's API for embeddings: POST /v2/embed."""
