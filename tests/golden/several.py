"""The gateway before several models: its own routes, and the answers that it passes on."""

import json
import os

from tests.golden.cases import GREEDY, Case, Served, both_ways

_HI = [{"role": "user", "content": "hi"}]
_CPUS = sorted(os.sched_getaffinity(0))
_COMMON = {"memory": "1GiB", "kv_cache_gib": 0.03, "weights_cache_gib": 0, "generation_config": "none"}
_FILE = {
    "models": {
        "first": {**_COMMON, "model": "{models}/family-llama-untied", "cores": _CPUS[0]},
        "second": {**_COMMON, "model": "{models}/family-qwen3", "cores": _CPUS[-1], "task": "embed", "load": "request"},
    }
}
_CASES = (
    Case("models", "/v1/models"),
    Case("models for Anthropic", "/v1/models", headers={"anthropic-version": "2023-06-01"}),
    *both_ways("chat", "/v1/chat/completions", {"model": "first", "messages": _HI, "max_tokens": 6, **GREEDY}),
    *both_ways("message", "/v1/messages", {"model": "first", "messages": _HI, "max_tokens": 6, **GREEDY}),
    Case("completion", "/v1/completions", {"model": "first", "prompt": "a", "max_tokens": 4, "logprobs": 1, **GREEDY}),
    Case("no model", "/v1/completions", {"prompt": "a", "max_tokens": 4, **GREEDY}),
    Case("another model", "/v1/completions", {"model": "third", "prompt": "a"}),
    Case("another model, Anthropic", "/v1/messages", {"model": "third", "messages": _HI, "max_tokens": 2}),
    Case("another model, Ollama", "/api/chat", {"model": "third", "messages": _HI}),
    Case("no JSON", "/v1/completions", b"{"),
    Case("embedding", "/v1/embeddings", {"model": "second", "input": "hi"}),
    Case("wrong task", "/v1/embeddings", {"model": "first", "input": "hi"}),
    Case("loaded", "/v1/models/second"),
    Case("unload", "/models/unload", {"model": "second"}),
    Case("unload another", "/models/unload", {"model": "third"}),
    Case("load", "/models/load", {"model": "second"}),
    *(
        Case(path, path)
        for path in ("/v1/models/first", "/v1/models/third", "/api/tags", "/api/ps", "/api/version", "/")
    ),
    *(Case(path, path) for path in ("/health", "/livez", "/version", "/server_info?model=first", "/unknown")),
    Case("document", "/openapi.json"),
    Case("metrics", "/metrics"),
)
SERVERS = (
    (Served("several models", "", _CASES, ("--models", "{folder}/models.json"), {"models.json": json.dumps(_FILE)}),)
    if len(_CPUS) > 1
    else ()
)
