"""Constraints in the words of each surface, over random models, whose answers the masks alone make well-formed."""

import json
from typing import Any

from tests.golden.cases import GREEDY, Case, Served, both_ways

_NUMBER = {"type": "integer", "maximum": 99}
_PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "sort": {"enum": ["cat", "dog"]},
        "ages": {"type": "array", "items": _NUMBER, "maxItems": 2},
    },
    "required": ["name", "sort", "ages"],
    "additionalProperties": False,
}
_TAG = {"structures": [{"begin": "<n>", "schema": _NUMBER, "end": "</n>"}], "triggers": ["<n>"]}
_NEWER_TAG = {
    "type": "structural_tag",
    "format": {
        "type": "tag",
        "begin": "<n>",
        "content": {"type": "json_schema", "json_schema": _NUMBER},
        "end": "</n>",
    },
}
_HI = [{"role": "user", "content": "hi"}]


def _named(schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, **more}}


_FIELDS: dict[str, dict[str, Any]] = {
    "json_object": {"response_format": {"type": "json_object"}},
    "schema": {"response_format": _named(_PERSON, strict=True)},
    "loose schema": {"response_format": _named({**_PERSON, "not": {}}, strict=False)},
    "structural tag": {"response_format": {"type": "structural_tag", **_TAG}},
    "newer structural tag": {"response_format": _NEWER_TAG},
    "vLLM json": {"structured_outputs": {"json": _NUMBER}},
    "vLLM regex": {"structured_outputs": {"regex": "[ab]{3,6}c"}},
    "vLLM choice": {"structured_outputs": {"choice": ["yes", "no", "perhaps"]}},
    "vLLM grammar": {"structured_outputs": {"grammar": 'start: "a" "b"+ "c"'}},
    "vLLM tag": {"structured_outputs": {"structural_tag": json.dumps(_NEWER_TAG)}},
    "guided json": {"guided_json": _PERSON},
    "guided regex": {"guided_regex": "[0-9]{4}-[0-9]{2}"},
    "guided choice": {"guided_choice": ["red", "green"]},
    "guided grammar": {"guided_grammar": 'root ::= "x" [yz]+ "w"'},
    "SGLang schema": {"json_schema": json.dumps(_PERSON)},
    "SGLang regex": {"regex": "(é|😀){2}"},
    "SGLang ebnf": {"ebnf": 'root ::= "a" | "b"'},
    "SGLang tag": {"structural_tag": _TAG},
}


def cases(limit: int = 40) -> tuple[Case, ...]:
    """Return requests with each constraint, as chat and as completions."""
    chat = {"messages": _HI, "max_tokens": limit, **GREEDY}
    text = {"prompt": "hi", "max_tokens": limit, "logprobs": 1, "return_token_ids": True, **GREEDY}
    return (
        *(case for name, each in _FIELDS.items() for case in both_ways(name, "/v1/chat/completions", {**chat, **each})),
        *(Case(f"{name}, completion", "/v1/completions", {**text, **each}) for name, each in _FIELDS.items()),
        Case("sampled", "/v1/completions", {**text, **_FIELDS["schema"], "temperature": 1, "seed": 5, "n": 3}),
        Case("least", "/v1/completions", {**text, **_FIELDS["vLLM grammar"], "min_tokens": 6, "ignore_eos": True}),
        *both_ways(
            "response",
            "/v1/responses",
            {
                "input": "hi",
                "max_output_tokens": limit,
                "text": {"format": {"type": "json_schema", "name": "n"}},
                **GREEDY,
            }
            | {"text": {"format": {"type": "json_schema", "name": "n", "schema": _PERSON, "strict": True}}},
        ),
        *both_ways(
            "message",
            "/v1/messages",
            {"model": "golden", "messages": _HI, "max_tokens": limit, **GREEDY}
            | {"output_config": {"format": {"type": "json_schema", "schema": _PERSON}}},
        ),
        *both_ways(
            "Ollama",
            "/api/chat",
            {
                "model": "golden",
                "messages": _HI,
                "format": _PERSON,
                "options": {"temperature": 0, "num_predict": limit},
            },
        ),
        Case(
            "Ollama json",
            "/api/generate",
            {"model": "golden", "prompt": "hi", "format": "json", "stream": False}
            | {"options": {"temperature": 0, "num_predict": limit}},
        ),
        *both_ways(
            "generate",
            "/generate",
            {"text": "hi", "sampling_params": {"temperature": 0, "max_new_tokens": limit, "regex": "[ab]{4}c"}},
        ),
    )


SERVERS = (
    Served(
        "constraints", "family-llama-untied", (*cases(), Case("metrics", "/metrics")), ("--mask-deadline-ms", "60000")
    ),
    Served(
        "constraints, 2 ranks",
        "family-gemma2",
        cases(24),
        ("--tp", "2", "--no-overlap", "--mask-deadline-ms", "60000"),
    ),
)
