"""The formats of calls and of thoughts of each template; those that are not here have neither."""

from tests.templates.kept_thoughts import ALWAYS, IN_LOOPS

_TEMPLATES: dict[tuple[str | None, str | None], list[str]] = {
    ("apriel", None): ["Apriel-1.6-15b-Thinker-fixed", "unsloth-Apriel-1.5"],
    ("cohere", "cohere"): ["Cohere2MoE", "CohereForAI-c4ai-command-r7b-12-2024-tool_use"],
    ("deepseek_v3", "deepseek_r1"): [
        "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
        "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
        "llama-cpp-deepseek-r1",
    ],
    ("deepseek_v31", "think"): ["deepseek-ai-DeepSeek-V3.1"],
    ("gemma4", "gemma4"): ["google-gemma-4-31B-it-interleaved", "google-gemma-4-31B-it"],
    ("glm45", "think"): [
        "GLM-4.6",
        "GLM-4.7-Flash",
        "Spark2.5",
        "inclusionai-ling-3.0-flash",
        "poolside-Laguna-S-2.1",
        "poolside-Laguna-XS-2.1",
        "poolside-Laguna-XS.2",
    ],
    ("granite3", "granite3"): ["ibm-granite-granite-3.3-2B-Instruct"],
    ("harmony", "gpt_oss"): ["openai-gpt-oss-120b"],
    ("hermes", "think"): ["Bielik-11B-v3.0-Instruct", "Qwen-QwQ-32B", "Qwen-Qwen3-0.6B", "Reka-Edge"],
    ("hermes", None): [
        "MiMo-VL",
        "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use",
        "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
        "Qwen-Qwen2.5-7B-Instruct",
        "ibm-granite-granite-4.0",
        "ibm-granite-granite-4.1",
    ],
    ("kimi_k2", "kimi_k2"): ["Kimi-K2-Thinking"],
    ("kimi_k2", None): ["Kimi-K2-Instruct", "moonshotai-Kimi-K2"],
    ("lfm2", "think"): ["LFM2.5-8B-A1B"],
    ("llama3_json", None): [
        "meta-llama-Llama-3.1-8B-Instruct",
        "meta-llama-Llama-3.2-3B-Instruct",
        "meta-llama-Llama-3.3-70B-Instruct",
    ],
    ("minimax_m2", "think"): ["MiniMax-M2"],
    ("mistral_v11", "mistral"): ["mistralai-Ministral-3-14B-Reasoning-2512"],
    ("mistral_v11", None): ["Mistral-Small-3.2-24B-Instruct-2506", "unsloth-mistral-Devstral-Small-2507"],
    ("mistral_v3", None): ["mistralai-Mistral-Nemo-Instruct-2407"],
    ("nemotron_v2", "think"): ["NVIDIA-Nemotron-Nano-v2"],
    ("qwen3_coder", "think"): ["NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "Qwen3.5-4B", "StepFun3.5-Flash"],
    ("qwen3_coder", None): ["Qwen3-Coder"],
    ("seed_oss", "seed_oss"): ["ByteDance-Seed-OSS"],
    (None, "think"): [
        "HuggingFaceTB-SmolLM3-3B",
        "LFM2.5-Instruct",
        "deepseek-ai-DeepSeek-V3.2",
        "deepseek-ai-DeepSeek-V4-Flash-0731",
        "deepseek-ai-DeepSeek-V4",
        "llama-cpp-rwkv-world",
        "openbmb-MiniCPM5-1B",
    ],
}
EXPECTED = {f"{name}.jinja": formats for formats, names in _TEMPLATES.items() for name in names}

# Templates that write the thought of an earlier answer again.
_KEPT_THOUGHTS: dict[str, list[str]] = {
    IN_LOOPS: [
        "GLM-4.6",
        "GLM-4.7-Flash",
        "LFM2.5-8B-A1B",
        "MiniMax-M2",
        "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
        "Qwen-Qwen3-0.6B",
        "Qwen3.5-4B",
        "StepFun3.5-Flash",
        "google-gemma-4-31B-it",
        "google-gemma-4-31B-it-interleaved",
        "openai-gpt-oss-120b",
        "openbmb-MiniCPM5-1B",
    ],
    ALWAYS: [
        "Bielik-11B-v3.0-Instruct",
        "ByteDance-Seed-OSS",
        "Cohere2MoE",
        "CohereForAI-c4ai-command-r7b-12-2024-tool_use",
        "Kimi-K3",
        "MiniMax-M3",
        "Spark2.5",
        "inclusionai-ling-3.0-flash",
        "muse-glimmer",
        "poolside-Laguna-S-2.1",
        "poolside-Laguna-XS-2.1",
        "poolside-Laguna-XS.2",
        "tencent-Hy3",
    ],
}
KEPT_THOUGHTS = {f"{name}.jinja": kept for kept, names in _KEPT_THOUGHTS.items() for name in names}

WRITE_NO_CALLS = {
    "ibm-granite-granite-3.3-2B-Instruct.jinja",  # the calls of an earlier answer are its content
    # They change a list, which the sandbox of Hugging Face's templates does not allow.
    "Kimi-K2-Instruct.jinja",
    "Kimi-K2-Thinking.jinja",
    "llama-cpp-deepseek-r1.jinja",  # writes a generator in JSON, which only llama.cpp can
}
