"""The errors of each surface: refused fields, unknown models, wrong keys, limits, and bodies that are not JSON."""

from typing import Any

from tests.golden.cases import GREEDY, Case, Served
from tests.golden.families import prompt

_HI = [{"role": "user", "content": "hi"}]
_MODEL = {"model": "golden"}
_KEYS = "key-one  name=one\nkey-limited  name=limited requests-per-minute=1\nkey-few  name=few tokens-per-minute=20\n"
_BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": _HI, "max_tokens": 2, **GREEDY},
    "/v1/completions": {"prompt": "hi", "max_tokens": 2, **GREEDY},
    "/v1/responses": {"input": "hi", "max_output_tokens": 2, **GREEDY},
    "/v1/messages": {**_MODEL, "messages": _HI, "max_tokens": 2, **GREEDY},
    "/api/chat": {**_MODEL, "messages": _HI, "options": {"num_predict": 2, **GREEDY}, "stream": False},
    "/api/generate": {**_MODEL, "prompt": "hi", "options": {"num_predict": 2, **GREEDY}, "stream": False},
    "/generate": {"text": "hi", "sampling_params": {"max_new_tokens": 2, **GREEDY}},
    "/v1/embeddings": {"input": "hi"},
    "/v1/rerank": {"query": "a", "documents": ["b"]},
    "/tokenize": {"prompt": "hi"},
    "/v1/messages/count_tokens": {**_MODEL, "messages": _HI},
}
_CHAT, _TEXT = "/v1/chat/completions", "/v1/completions"
_LONG = "word " * 600


def _of_all(name: str, changes: dict[str, Any], **more: Any) -> tuple[Case, ...]:
    """Return a request of each surface with the same changes."""
    return tuple(Case(f"{name} {path}", path, {**body, **changes}, **more) for path, body in _BODIES.items())


def _chat(name: str, **changes: Any) -> Case:
    return Case(f"chat: {name}", _CHAT, {**_BODIES[_CHAT], **changes})


def _text(name: str, **changes: Any) -> Case:
    return Case(f"completion: {name}", _TEXT, {**_BODIES[_TEXT], **changes})


_OPEN = (
    *_of_all("another model", {"model": "other"}),
    *_of_all("misspelt field", {"modelx": "x", "stream_": True}),
    *_of_all("priority as a text", {"priority": "high"}),
    *(Case(f"no JSON {path}", path, b"{") for path in _BODIES),
    *(Case(f"nothing {path}", path, b"") for path in _BODIES),
    *(Case(f"a list {path}", path, []) for path in _BODIES),
    *(Case(f"GET {path}", path, method="GET") for path in _BODIES),
    *(Case(f"text {path}", path, "hi", headers={"content-type": "text/plain"}) for path in _BODIES),
    Case("unknown route", "/v1/unknown"),
    Case("unknown route, Ollama", "/api/unknown", {}),
    Case("unknown route, Anthropic", "/v1/messages/unknown", {}),
    Case("unknown model", "/v1/models/other"),
    Case("unknown response", "/v1/responses/resp_0"),
    Case("unknown response, deleted", "/v1/responses/resp_0", method="DELETE"),
    Case("unknown response, followed", "/v1/responses", {"input": "a", "previous_response_id": "resp_0"}),
    Case("show another", "/api/show", {"model": "other"}),
    Case("pull another", "/api/pull", {"model": "other"}),
    _chat("hot", temperature=3),
    _chat("no messages", messages=[]),
    _chat("unknown role", messages=[{"role": "robot", "content": "hi"}]),
    _chat("image", messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]),
    _chat("logprobs missing", top_logprobs=2),
    _chat("many logprobs", logprobs=True, top_logprobs=21),
    _chat("tools without a name", tools=[{"type": "function", "function": {}}]),
    _chat("choice without tools", tool_choice="required"),
    _chat("unsupported", session_params="x"),
    _chat("two constraints", response_format={"type": "json_object"}, regex="a"),
    _chat("bad schema", response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "x"}}}),
    _chat("bad expression", guided_regex="(a"),
    _chat("bad grammar", guided_grammar="what is this"),
    _chat("template's variable", chat_template_kwargs={"messages": 1}),
    _chat("too long", messages=[{"role": "user", "content": _LONG}]),
    _text("token outside", prompt=[5, 99999]),
    _text("no prompt", prompt=""),
    _text("best of", best_of=3, n=1),
    _text("many tokens", prompt=prompt(500), max_tokens=100),
    _text("suffix", suffix="x"),
    _text("echoed stream of prompt_logprobs", prompt_logprobs=1, stream=True),
    _text("unknown drafter", speculative=["magic"]),
    _text("drafter that is off", speculative=["suffix"]),
    _text("not a number", temperature="hot"),
    Case("completion: NaN", _TEXT, '{"prompt": "a", "temperature": NaN}'),
    Case("completion: bad header", _TEXT, _BODIES[_TEXT], headers={"x-request-timeout": "soon"}),
    Case(
        "message: too long",
        "/v1/messages",
        {**_MODEL, "max_tokens": 5, "messages": [{"role": "user", "content": _LONG}]},
    ),
    Case("message: no maximum", "/v1/messages", {**_MODEL, "messages": _HI}),
    Case("generate: nothing", "/generate", {}),
    Case("generate: both", "/generate", {"text": "a", "input_ids": [5]}),
    Case("tokens of both", "/tokenize", {"prompt": "a", "messages": _HI}),
    Case("detokenize outside", "/detokenize", {"tokens": [99999]}),
    Case("page of another site", _CHAT, _BODIES[_CHAT], headers={"origin": "https://example.com"}),
    Case("another host", "/v1/models", headers={"host": "example.com"}),
    Case("page of an allowed site", "/v1/models", headers={"origin": "https://chat.example.com"}),
    Case(
        "preflight of an allowed site",
        _CHAT,
        method="OPTIONS",
        headers={"origin": "https://chat.example.com", "access-control-request-method": "POST"},
    ),
    Case("long body", "/tokenize", b'{"prompt": "' + b"a" * (34 << 20) + b'"}'),
    Case("errors counted", "/metrics"),
)
_BEARER = {"authorization": "Bearer key-one"}
_GUARDED = (
    *_of_all("no key", {}),
    *_of_all("wrong key", {}, headers={"authorization": "Bearer other"}),
    *_of_all("key", {"unknown": 1}, headers=_BEARER)[:7],
    Case("key of Anthropic", "/v1/models", headers={"x-api-key": "key-one"}),
    Case("health without a key", "/health"),
    Case("metrics without a key", "/metrics"),
    *(
        Case(f"limited {path}", path, body, headers={"authorization": "Bearer key-limited"})
        for path, body in [*_BODIES.items()][:7]
    ),
    Case("too many tokens", _TEXT, {"prompt": prompt(40), **GREEDY}, headers={"authorization": "Bearer key-few"}),
    Case("metrics", "/metrics", headers=_BEARER),
    Case("server", "/server_info", headers=_BEARER),
    Case("document", "/openapi.json", headers=_BEARER),
)
_FULL = (
    Case("more choices than the queue holds", _TEXT, {"prompt": "a", "n": 8, "max_tokens": 2}),
    Case("more choices than the queue holds, chat", _CHAT, {"messages": _HI, "n": 8, "max_tokens": 2}),
    Case("more prompts than the queue holds", "/generate", {"text": ["a"] * 8}),
    Case(
        "timeout", _TEXT, {"prompt": "a", "max_tokens": 400, "ignore_eos": True}, headers={"x-request-timeout": "0.01"}
    ),
    Case("strict", _TEXT, {"prompt": "a", "max_tokens": 1, "foo": 1}),
    Case("strict, Anthropic", "/v1/messages", {**_BODIES["/v1/messages"], "foo": 1}),
    Case("strict, Ollama", "/api/chat", {**_BODIES["/api/chat"], "foo": 1}),
    Case("under a prefix", "/llm/v1/models"),
)
_SECONDS = ("Retry after [0-9]+ s",)
SERVERS = (
    Served("errors", "family-llama-untied", _OPEN, ("--cors-origin", "https://chat.example.com")),
    Served(
        "errors of keys",
        "family-llama-untied",
        _GUARDED,
        ("--api-key-file", "{folder}/keys"),
        files={"keys": _KEYS},
        loose=_SECONDS,
    ),
    Served(
        "errors of limits",
        "family-llama-untied",
        _FULL,
        ("--max-running-requests", "1", "--max-queued-requests", "1", "--strict-fields", "--root-path", "/llm"),
        loose=_SECONDS,
    ),
)
