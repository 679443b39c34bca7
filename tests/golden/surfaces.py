"""Every generating surface over a random model, and what a running server reports of itself.

`tests.transcripts` has the fields of requests and the forms of answers and errors, over a stand-in for the engine.
"""

from tests.golden.cases import GREEDY, Case, Served, both_ways
from tests.golden.families import prompt

_HI = [{"role": "user", "content": "How are you?"}]
_OLLAMA = {"model": "golden", "options": {"temperature": 0, "num_predict": 8, "seed": 1}}
_SGLANG = {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}
_SAMPLED = {"temperature": 0.8, "seed": 11, "top_p": 0.95, "presence_penalty": 0.5, "frequency_penalty": 0.25}
_TEXT, _RESPONSES = "/v1/completions", "/v1/responses"

_GENERATED = (
    *both_ways(
        "chat",
        "/v1/chat/completions",
        {"messages": _HI, "max_completion_tokens": 6, "logprobs": True, "top_logprobs": 3, **GREEDY},
    ),
    *both_ways("completion, scored", _TEXT, {"prompt": "Once", "max_tokens": 3, "logprobs": 2, "echo": True, **GREEDY}),
    Case("completion, lists", _TEXT, {"prompt": ["one", "two"], "n": 2, "max_tokens": 3, **_SAMPLED}),
    Case(
        "completion, biased and stopped",
        _TEXT,
        {"prompt": "abc", "max_tokens": 12, "logit_bias": {"70": 100, "71": 99}, "stop": ["gg"], **GREEDY}
        | {"include_stop_str_in_output": True, "min_tokens": 1},
    ),
    Case(
        "completion, resumed",
        _TEXT,
        {"prompt": "Once upon a time", "max_tokens": 8, "resume_token_ids": [70, 71, 72], **GREEDY},
    ),
    *both_ways("response", _RESPONSES, {"input": _HI, "max_output_tokens": 4, "top_logprobs": 2, **GREEDY}),
    *both_ways("message", "/v1/messages", {"model": "golden", "max_tokens": 8, "messages": _HI, **GREEDY}),
    *both_ways("Ollama chat", "/api/chat", {**_OLLAMA, "messages": _HI}),
    *both_ways(
        "generate, named tokens",
        "/generate",
        {"text": "abc", "return_logprob": True, "token_ids_logprob": [5, 9], "sampling_params": _SGLANG},
    ),
    Case(
        "generate, scored",
        "/generate",
        {"input_ids": prompt(40), "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2}
        | {"sampling_params": _SGLANG},
    ),
)
_PAGES = tuple(Case(path, path) for path in ("/openapi.json", "/server_info", "/machine", "/metrics", "/ui"))
_LIMITED = (
    Case("more choices than the queue holds", _TEXT, {"prompt": "a", "n": 8, "max_tokens": 2}),
    Case(
        "timeout", _TEXT, {"prompt": "a", "max_tokens": 400, "ignore_eos": True}, headers={"x-request-timeout": "0.01"}
    ),
    Case("strict", _TEXT, {"prompt": "a", "max_tokens": 1, "foo": 1}),
    Case("long body", "/tokenize", b'{"prompt": "' + b"a" * (34 << 20) + b'"}'),
    Case("page of another site", _TEXT, {"prompt": "a"}, headers={"origin": "https://example.com"}),
    Case("another host", "/v1/models", headers={"host": "example.com"}),
    Case("page of an allowed site", "/v1/models", headers={"origin": "https://chat.example.com"}),
    Case("under a prefix", "/llm/v1/models"),
    Case("metrics", "/metrics"),
)
_LIMITS = ("--max-running-requests", "1", "--max-queued-requests", "1", "--strict-fields", "--root-path", "/llm")
SERVERS = (
    Served("surfaces", "family-llama-untied", (*_GENERATED, *_PAGES), events=True),
    Served("surfaces, 2 ranks", "family-llama-untied", _GENERATED, ("--tp", "2", "--no-prefix-cache", "--no-overlap")),
    Served(
        "limits",
        "family-llama-untied",
        _LIMITED,
        (*_LIMITS, "--cors-origin", "https://chat.example.com"),
        loose=("Retry after [0-9]+ s",),
    ),
)
