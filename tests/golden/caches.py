"""The prefix cache: what is found, shared, evicted and flushed, and the KV events that report it."""

from typing import Any

from tests.golden.cases import GREEDY, Case, Served
from tests.golden.families import prompt

_ONE, _OTHER = {"authorization": "Bearer key-one"}, {"authorization": "Bearer key-other"}
_MATE = {"authorization": "Bearer key-mate"}
_KEYS = "key-one  name=one cache-group=team\nkey-mate  name=mate cache-group=team\nkey-other  name=other\n"


def _text(name: str, tokens: list[int], headers: dict[str, str] | None = None, **fields: Any) -> Case:
    body = {"prompt": tokens, "max_tokens": 4, "logprobs": 1, "ignore_eos": True, **GREEDY, **fields}
    return Case(name, "/v1/completions", body, headers=headers or {})


def _state(when: str) -> tuple[Case, ...]:
    paths = ("/server_info", "/metrics", "/v1/loads")
    return tuple(Case(f"{path} {when}", path) for path in paths)


_FOUND = (
    _text("first", prompt(100)),
    _text("again", prompt(100)),
    _text("the same beginning", [*prompt(70), *prompt(40, 1)]),
    _text("a page exactly", prompt(64)),
    _text("a page and one", prompt(65)),
    _text("longer than what it says", prompt(100), max_tokens=70),
    _text("what it said before", prompt(100), max_tokens=72),
    _text("two at once", prompt(90, 2), n=2),
    _text("salted", prompt(100), cache_salt="a"),
    _text("salted again", prompt(100), cache_salt="a"),
    _text("scored", prompt(100), prompt_logprobs=1),
    *_state("before the flush"),
    Case("flushed", "/flush_cache", method="POST"),
    _text("after the flush", prompt(100)),
    *_state("after the flush"),
)
_EVICTED = (
    *(_text(f"prompt {salt}", prompt(120, salt)) for salt in range(8)),
    *(_text(f"prompt {salt} again", prompt(120, salt)) for salt in (7, 6, 0, 1)),
    _text("several", prompt(100, 9), n=4, max_tokens=40),
    _text("too long for the cache", prompt(500)),
    *_state("at the end"),
)
_SHARED = (
    _text("one", prompt(100), _ONE),
    _text("a mate", prompt(100), _MATE),
    _text("another", prompt(100), _OTHER),
    _text("another again", prompt(100), _OTHER),
    Case("server", "/server_info", headers=_ONE),
)
_SMALL = ("--kv-cache-gib", "0.0003", "--max-running-requests", "4")
_KEY_FILE = {"options": ("--api-key-file", "{folder}/keys"), "files": {"keys": _KEYS}}
SERVERS = (
    Served("cache", "family-llama-untied", _FOUND, events=True),
    Served("cache of latents, 2 ranks", "family-deepseek_v3", _FOUND, ("--tp", "2"), events=True),
    Served("cache of windows", "family-gemma3", _FOUND, events=True),
    Served("cache, evicted", "family-llama-untied", _EVICTED, _SMALL, events=True),
    Served("cache, none", "family-llama-untied", _FOUND, ("--no-prefix-cache",)),
    Served("cache of groups", "family-llama-untied", _SHARED, **_KEY_FILE),
    Served("cache of groups, with events", "family-llama-untied", _SHARED, **_KEY_FILE, events=True),
)
