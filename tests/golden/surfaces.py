"""Every HTTP surface over a random model: whole answers and streams, their fields, and the pages of the server."""

from tests.golden.cases import GREEDY, Case, Served, both_ways
from tests.golden.families import prompt

_HI = [{"role": "user", "content": "How are you?"}]
_TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Name a colour."}]},
    {"role": "assistant", "content": "Red."},
    {"role": "user", "content": "Another one, 100% é 😀."},
]
_CHAT, _TEXT, _RESPONSES, _MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
_SAMPLED = {"temperature": 0.8, "seed": 11, "top_p": 0.95, "presence_penalty": 0.5, "frequency_penalty": 0.25}
_OLLAMA = {"model": "golden", "options": {"temperature": 0, "num_predict": 8, "seed": 1}}
_SGLANG = {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}

CHAT = (
    *both_ways("chat", _CHAT, {"messages": _TURNS, "max_tokens": 8, "temperature": 0}),
    *both_ways(
        "chat with log-probabilities",
        _CHAT,
        {"messages": _HI, "max_completion_tokens": 6, "temperature": 0, "logprobs": True, "top_logprobs": 3},
    ),
    Case("chat, two choices", _CHAT, {"messages": _HI, "max_tokens": 6, "n": 2, "logprobs": True, **_SAMPLED}),
    Case(
        "chat, usage in the stream",
        _CHAT,
        {"messages": _HI, "max_tokens": 4, "temperature": 0, "stream": True}
        | {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    ),
    Case("chat, unknown fields", _CHAT, {"messages": _HI, "max_tokens": 2, "temperature": 0, "foo": 1, "bar": [2]}),
    Case(
        "chat, token ids",
        _CHAT,
        {"messages": _HI, "max_tokens": 4, "temperature": 0, "return_token_ids": True, "ignore_eos": True}
        | {"prompt_logprobs": 1, "logprobs": True, "return_tokens_as_token_ids": True, "skip_special_tokens": False},
    ),
    *both_ways(
        "chat, continued",
        _CHAT,
        {"messages": [*_HI, {"role": "assistant", "content": "I am"}], "continue_final_message": True, "echo": True}
        | {"add_generation_prompt": False, "max_tokens": 4, "temperature": 0},
    ),
)
TEXT = (
    *both_ways("completion", _TEXT, {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}),
    *both_ways("completion, scored", _TEXT, {"prompt": "Once", "max_tokens": 3, "logprobs": 2, "echo": True, **GREEDY}),
    Case("completion, scored alone", _TEXT, {"prompt": prompt(40), "max_tokens": 0, "logprobs": 1, "echo": True}),
    Case("completion, lists", _TEXT, {"prompt": ["one", "two"], "n": 2, "max_tokens": 3, **_SAMPLED}),
    Case("completion, tokens", _TEXT, {"prompt": [[5, 6, 7], [8, 9]], "max_tokens": 3, "temperature": 0}),
    Case(
        "completion, biased and stopped",
        _TEXT,
        {"prompt": "abc", "max_tokens": 12, "temperature": 0, "logit_bias": {"70": 100, "71": 99}, "stop": ["gg"]}
        | {"include_stop_str_in_output": True, "min_tokens": 1},
    ),
    Case(
        "completion, stop token",
        _TEXT,
        {"prompt": "abc", "max_tokens": 12, "temperature": 0, "logit_bias": {"70": 100}, "stop_token_ids": [70]},
    ),
    Case("completion, salted", _TEXT, {"prompt": prompt(70), "max_tokens": 2, "cache_salt": "s", **GREEDY}),
    Case("completion, salted again", _TEXT, {"prompt": prompt(70), "max_tokens": 2, "cache_salt": "s", **GREEDY}),
    Case("completion, unsalted", _TEXT, {"prompt": prompt(70), "max_tokens": 2, "temperature": 0}),
    Case(
        "completion, resumed",
        _TEXT,
        {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0, "resume_token_ids": [70, 71, 72]},
    ),
)
RESPONSES = (
    *both_ways("response", _RESPONSES, {"input": "How are you?", "max_output_tokens": 8, "temperature": 0}),
    Case(
        "response, kept",
        _RESPONSES,
        {"input": _HI, "instructions": "Be brief.", "max_output_tokens": 6, "temperature": 0, "metadata": {"a": "b"}},
        take={"first": r'"id":"(resp_[^"]+)"'},
    ),
    Case("response, read", f"{_RESPONSES}/{{{{first}}}}"),
    Case("response, its input", f"{_RESPONSES}/{{{{first}}}}/input_items"),
    *both_ways(
        "response, followed",
        _RESPONSES,
        {"input": "Another one.", "previous_response_id": "{{first}}", "max_output_tokens": 4, "temperature": 0}
        | {"store": False, "top_logprobs": 2, "include": ["message.output_text.logprobs"]},
    ),
    Case("response, counted", f"{_RESPONSES}/input_tokens", {"input": _HI, "previous_response_id": "{{first}}"}),
    Case("response, deleted", f"{_RESPONSES}/{{{{first}}}}", method="DELETE"),
    Case("response, gone", f"{_RESPONSES}/{{{{first}}}}"),
)
MESSAGES = (
    *both_ways(
        "message",
        _MESSAGES,
        {"model": "golden", "max_tokens": 8, "temperature": 0, "system": "Be brief.", "messages": _HI},
    ),
    Case(
        "message, stopped",
        _MESSAGES,
        {"model": "golden", "max_tokens": 9, "temperature": 0, "messages": _TURNS[1:], "stop_sequences": ["a", "e"]},
    ),
    Case("message, counted", f"{_MESSAGES}/count_tokens", {"model": "golden", "messages": _HI, "system": "Be brief."}),
)
OLLAMA = (
    *both_ways("Ollama chat", "/api/chat", {**_OLLAMA, "messages": _HI}),
    *both_ways("Ollama generate", "/api/generate", {**_OLLAMA, "prompt": "Hello", "system": "Be brief."}),
    Case("Ollama raw", "/api/generate", {**_OLLAMA, "prompt": "Hello", "raw": True, "stream": False, "logprobs": True}),
    Case("Ollama loading", "/api/generate", {"model": "golden:latest"}),
    Case("Ollama tags", "/api/tags"),
    Case("Ollama ps", "/api/ps"),
    Case("Ollama show", "/api/show", {"model": "golden"}),
    Case("Ollama pull", "/api/pull", {"model": "golden"}),
    Case("Ollama version", "/api/version"),
)
SGLANG = (
    *both_ways("generate", "/generate", {"text": "Once upon", "sampling_params": _SGLANG}),
    Case(
        "generate, scored",
        "/generate",
        {"input_ids": prompt(40), "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2}
        | {"return_text_in_logprobs": True, "sampling_params": _SGLANG},
    ),
    *both_ways(
        "generate, named tokens",
        "/generate",
        {"text": "abc", "return_logprob": True, "token_ids_logprob": [5, 9], "sampling_params": _SGLANG},
    ),
    Case("generate, lists", "/generate", {"text": ["a", "b"], "sampling_params": {**_SGLANG, "n": 2}}),
    Case("abort", "/abort_request", {"rid": "unknown"}),
    Case("health, generated", "/health_generate"),
    Case("flush", "/flush_cache", method="POST"),
)
OTHERS = (
    Case("tokenize", "/tokenize", {"prompt": "Hello 😀", "return_token_strs": True}),
    Case("tokenize a conversation", "/tokenize", {"messages": _TURNS, "add_generation_prompt": True}),
    Case("detokenize", "/detokenize", {"tokens": prompt(20)}),
    Case("embeddings refused", "/v1/embeddings", {"input": "a"}),
    *(Case(path, path) for path in ("/v1/models", "/v1/models/golden", "/health", "/livez", "/readyz", "/version")),
    Case("models for Anthropic", "/v1/models", headers={"anthropic-version": "2023-06-01"}),
    *(Case(path, path) for path in ("/get_model_info", "/model_info", "/v1/loads", "/get_load", "/load", "/ping", "/")),
    Case("preflight", "/v1/models", method="OPTIONS"),
    Case("head", "/v1/models", method="HEAD"),
    Case("reset", "/reset_prefix_cache", method="POST"),
    Case("tokenizer", "/tokenizer_info"),
)
PAGES = tuple(
    Case(path, path) for path in ("/openapi.json", "/server_info", "/get_server_info", "/machine", "/metrics", "/ui")
)
_ALL = (*CHAT, *TEXT, *RESPONSES, *MESSAGES, *OLLAMA, *SGLANG, *OTHERS, *PAGES)
SERVERS = (
    Served("surfaces", "family-llama-untied", _ALL, ("--tokenizer-info",), events=True),
    Served(
        "surfaces, 2 ranks",
        "family-llama-untied",
        (*CHAT, *TEXT, *RESPONSES, *MESSAGES, *OLLAMA, *SGLANG),
        ("--tp", "2", "--no-prefix-cache", "--no-overlap"),
    ),
)
