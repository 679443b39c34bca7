"""Every drafter: answers are the same as without, whatever is accepted. Counts of draft tokens depend on time."""

from typing import Any

from tests.golden.cases import GREEDY, Case, Served
from tests.golden.constraints import cases as constrained
from tests.golden.families import prompt, token_cases

_CONSTRAINED = [
    f"{name}, completion" for name in ("schema", "json_object", "vLLM choice", "guided regex", "SGLang tag")
]
_LONG = {"max_tokens": 40, "logprobs": 2, "ignore_eos": True, "return_token_ids": True, **GREEDY}
_SAID = "Yes, it rains."
_EDITED = {
    "messages": [{"role": "user", "content": "Is it wet?"}],
    "chat_template_kwargs": {"enable_thinking": False},
    **GREEDY,
}
# What is accepted depends on the cost of steps, and what is cached depends on what is accepted.
_PAGES = r"(?m)^(?:numaserve_(?:kv|prefix)_|vllm:(?:kv|prefix|gpu)_).* \S+$"
_COUNTS = (
    r'"(?:accepted|rejected)_prediction_tokens":[0-9]+',
    r'"(?:prefix_hit_tokens|pages_free|pages_cached)":[0-9]+',
    _PAGES,
)


def _text(name: str, **fields: Any) -> Case:
    return Case(name, "/v1/completions", {"prompt": prompt(40), **_LONG, **fields})


_CASES = (
    *token_cases(),
    _text("long"),
    _text("long, again"),
    _text("repeated text", prompt=prompt(20) * 4),
    _text("long, sampled", temperature=0.7, seed=3),
    _text("long, sampled again", temperature=0.7, seed=3),
    _text("off", speculative="off"),
    _text("suffix alone", speculative=["suffix"]),
    _text("salted", cache_salt="s"),
    _text("choices", n=3, temperature=1, seed=5),
    _text("penalties", repetition_penalty=1.2, presence_penalty=0.3),
    *(each for each in constrained(40) if each.name in _CONSTRAINED),
    Case("server", "/server_info"),
    Case("metrics", "/metrics"),
)
_PREDICTED = (
    Case("predicted", "/v1/chat/completions", {**_EDITED, "prediction": {"type": "content", "content": _SAID}}),
    Case(
        "predicted in part",
        "/v1/chat/completions",
        {**_EDITED, "prediction": {"type": "content", "content": "Yes, no"}},
    ),
    Case("not predicted", "/v1/chat/completions", _EDITED),
)
_DRAFT = ("--draft-model", "{models}/family-llama-untied")


def _served(name: str, model: str, *options: str, cases: tuple[Case, ...] = _CASES) -> Served:
    return Served(f"speculation {name}", model, cases, options, loose=_COUNTS)


SERVERS = (
    *(
        _served(name, "family-llama-untied", "--speculative", name)
        for name in ("prediction", "suffix", "grammar", "auto", "off")
    ),
    _served("suffix, no overlap", "family-gemma3", "--speculative", "suffix", "--no-overlap"),
    _served("suffix, 2 ranks", "family-qwen2_moe", "--speculative", "suffix", "--tp", "2"),
    _served("draft model", "family-llama-untied", *_DRAFT, "--speculative", "draft_model"),
    _served("another draft model", "family-qwen3", *_DRAFT, "--draft-quantization", "int8"),
    _served("draft model, 2 ranks", "family-deepseek_v3", *_DRAFT, "--tp", "2"),
    _served("MTP of DeepSeek", "predicting-deepseek_v3", "--speculative", "mtp"),
    _served("MTP of GLM", "predicting-glm4_moe", "--speculative", "auto"),
    _served("MTP, 2 ranks", "predicting-deepseek_v3", "--speculative", "mtp", "--tp", "2"),
    _served("prediction of a text", "scripted-hermes", "--speculative", "prediction", cases=_PREDICTED),
)
