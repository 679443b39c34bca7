"""Every model family: tokens and log-probabilities of one rank, and of two where a family divides in its own way."""

from tests.golden.cases import Case, Served

_GREEDY = {"temperature": 0, "ignore_eos": True, "return_token_ids": True}
_SAMPLED = {"temperature": 0.9, "top_p": 0.9, "top_k": 40, "seed": 7, "repetition_penalty": 1.1, "ignore_eos": True}
FAMILIES = (
    *("llama-tied", "llama-untied", "llama3-rope", "llama-linear-rope", "llama-yarn", "mistral", "ministral3"),
    *("qwen2", "qwen3", "gemma2", "gemma3", "smollm3", "smollm3-sliding", "granite", "granite4", "granite4-rope"),
    *("ernie4_5", "hunyuan", "phi3", "mixtral", "qwen2_moe", "qwen3_moe", "glm4_moe", "gpt_oss"),
    *("deepseek_v2", "deepseek_v3", "gemma3-nested-tied", "gemma3-nested-untied", "mistral3-nested-tied"),
    "mistral3-nested-untied",
)
_ON_TWO_RANKS = ("llama-tied", "gemma3", "qwen2_moe", "gpt_oss", "deepseek_v3")
_WITH_WHOLE_EXPERTS = ("qwen3_moe", "deepseek_v2")
GGUF_FAMILIES = (
    *("llama-tied", "ministral3", "qwen2", "qwen3", "smollm3", "granite", "ernie4_5", "hunyuan", "mixtral"),
    *("qwen2_moe", "qwen3_moe", "glm4_moe", "gpt_oss", "deepseek_v2", "deepseek_v3"),
)


def prompt(length: int, salt: int = 0) -> list[int]:
    """Return token ids that look random."""
    return [(index * index * 7 + index * 31 + salt * 97) % 390 + 3 for index in range(length)]


def token_cases(length: int = 70) -> tuple[Case, ...]:
    """Return requests whose answers hold token ids and log-probabilities: computed, cached in part, and sampled."""
    first = prompt(length)
    return (
        Case("greedy", "/v1/completions", {"prompt": first, "max_tokens": 10, "logprobs": 5, **_GREEDY}),
        Case(
            "from the cache",
            "/v1/completions",
            {"prompt": [*first, *prompt(30, 1)], "max_tokens": 6, "logprobs": 2, **_GREEDY},
        ),
        Case(
            "prompt",
            "/v1/completions",
            {"prompt": prompt(40, 2), "max_tokens": 1, "logprobs": 0, "prompt_logprobs": 1, **_GREEDY},
        ),
        Case(
            "sampled",
            "/v1/completions",
            {"prompt": first, "max_tokens": 8, "logprobs": 1, "return_token_ids": True, **_SAMPLED},
        ),
    )


SERVERS = (
    *(Served(f"family {name}", f"family-{name}", token_cases()) for name in FAMILIES),
    *(Served(f"family {name}, 2 ranks", f"family-{name}", token_cases(), ("--tp", "2")) for name in _ON_TWO_RANKS),
    *(
        Served(f"family {name}, whole experts", f"family-{name}", token_cases(), ("--tp", "2", "--expert-parallel"))
        for name in _WITH_WHOLE_EXPERTS
    ),
    *(Served(f"GGUF {name}", f"gguf-{name}.gguf", token_cases()) for name in GGUF_FAMILIES),
)
