"""The smallest bodies of the routes that run the model, by path."""

from typing import Any

from tests.support.api_fakes import MODEL

_MESSAGES = [{"role": "user", "content": "hi"}]
GENERATING: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": _MESSAGES, "n": 2},
    "/v1/completions": {"prompt": ["hi", "you"]},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": _MESSAGES, "max_tokens": 5, "model": MODEL},
    "/api/chat": {"messages": _MESSAGES, "model": MODEL, "stream": False},
    "/api/generate": {"prompt": "hi", "model": MODEL, "stream": False},
    "/generate": {"text": "hi"},
}
POOLING: dict[str, dict[str, Any]] = {
    "/v1/embeddings": {"input": ["a", "b"]},
    "/api/embed": {"input": "a", "model": MODEL},
    "/api/embeddings": {"prompt": "a", "model": MODEL},
    "/v2/embed": {"texts": ["a", "b"], "model": MODEL},
    "/embed": {"inputs": "a"},
}
SPARSE: dict[str, dict[str, Any]] = {"/embed_sparse": {"inputs": ["a", "b"]}}
CLASSIFYING: dict[str, dict[str, Any]] = {"/predict": {"inputs": [["a"], ["b", "c"]]}}
JUDGING: dict[str, dict[str, Any]] = {
    **{path: {"query": "q", "documents": ["a", "b"]} for path in ("/v1/rerank", "/v2/rerank", "/rerank")},
    **{path: {"text_1": "q", "text_2": ["a", "b"]} for path in ("/v1/score", "/score")},
}
TEXTS: dict[str, dict[str, Any]] = {"/tokenize": {"prompt": "hi"}, "/detokenize": {"tokens": [1, 2]}}
