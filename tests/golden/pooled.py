"""Embeddings and scores: the answers of servers with another task, and what they refuse."""

from tests.golden.cases import Case, Served
from tests.golden.families import prompt

_TEXTS = ["one", "two words", "three é 😀"]
_RERANK = {"query": "wet?", "documents": ["rain", "sun", {"text": "fog"}]}
_PAGES = tuple(
    Case(path, path) for path in ("/server_info", "/v1/models", "/get_model_info", "/openapi.json", "/metrics")
)
_EMBED = (
    Case("one text", "/v1/embeddings", {"input": "one"}),
    Case("texts", "/v1/embeddings", {"input": _TEXTS, "model": "golden"}),
    Case("tokens", "/v1/embeddings", {"input": [prompt(70), prompt(33, 1)]}),
    Case("tokens again", "/v1/embeddings", {"input": prompt(70)}),
    Case("base64", "/v1/embeddings", {"input": _TEXTS, "encoding_format": "base64"}),
    Case("short", "/v1/embeddings", {"input": "one", "dimensions": 8}),
    Case("plain", "/v1/embeddings", {"input": "one", "dimensions": 8, "normalize": False}),
    Case("Ollama", "/api/embed", {"model": "golden", "input": _TEXTS}),
    Case("Ollama, older", "/api/embeddings", {"model": "golden", "prompt": "one"}),
    Case("bits", "/v1/embeddings", {"input": "one", "embedding_type": "binary"}),
    Case("truncated", "/v1/embeddings", {"input": "word " * 600, "truncate_prompt_tokens": 9}),
    Case("Cohere", "/v2/embed", {"texts": _TEXTS, "embedding_types": ["float", "ubinary"], "max_tokens": 2}),
    Case("Cohere, refused", "/v2/embed", {"texts": ["one"], "embedding_types": ["int8"]}),
    Case("text-embeddings-inference", "/embed", {"inputs": _TEXTS}),
    Case("text-embeddings-inference, too long", "/embed", {"inputs": "word " * 600}),
    Case("nothing", "/v1/embeddings", {"input": []}),
    Case("too many dimensions", "/v1/embeddings", {"input": "a", "dimensions": 9999}),
    Case("too long", "/v1/embeddings", {"input": "word " * 600}),
    Case("Ollama, too long", "/api/embed", {"model": "golden", "input": "word " * 600, "truncate": False}),
    Case("chat refused", "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
    Case("completion refused", "/v1/completions", {"prompt": "hi"}),
    Case("generate", "/generate", {"text": "hi"}),
    *_PAGES,
)
_SCORE = (
    *(Case(path, path, _RERANK) for path in ("/v1/rerank", "/rerank", "/v2/rerank")),
    Case("best", "/v1/rerank", {**_RERANK, "top_n": 1, "return_documents": False, "instruct": "Judge."}),
    Case("shortened", "/v1/rerank", {**_RERANK, "max_tokens_per_doc": 1}),
    Case("scores", "/v1/score", {"text_1": "wet?", "text_2": ["rain", "sun"]}),
    Case("scores of pairs", "/score", {"queries": ["a", "b"], "documents": ["c", "d"]}),
    Case("nothing", "/v1/rerank", {"query": "a", "documents": []}),
    Case("unequal", "/v1/score", {"text_1": ["a", "b"], "text_2": ["c", "d", "e"]}),
    Case("both names", "/v1/score", {"text_1": "a", "queries": "b", "text_2": "c"}),
    Case("too long", "/v1/score", {"text_1": "a", "text_2": "word " * 600}),
    Case(
        "chat",
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "temperature": 0},
    ),
    *_PAGES,
)
SERVERS = (
    Served("embed", "family-qwen3", _EMBED, ("--task", "embed")),
    Served("embed, 2 ranks", "family-gemma2", _EMBED[:9], ("--task", "embed", "--tp", "2")),
    Served("score", "judging-qwen3", _SCORE, ("--task", "score")),
)
