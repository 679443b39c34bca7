"""Every format of weights, of activations and of the KV cache."""

from tests.golden.cases import Served
from tests.golden.families import token_cases

# All layouts of `tests.support.published`, which is not imported here: it needs torch.
_LAYOUTS = (
    *("gptq", "gptq asymmetric", "gptq v2 rows", "gptq 8 bits", "gptq 3 bits", "gptq 2 bits", "gptq act-order", "awq"),
    *("auto-round gptq", "auto-round", "auto-round 3 bits", "auto-round 2 bits", "auto-round awq", "w4a16"),
    *("w4a16 asymmetric", "w4a16 act-order", "w8a16", "w8a8", "w8a8 asymmetric", "fp8 blocks", "fp8 rows"),
    *("fp8 tensor", "fp8 fixed activations", "fp8 fixed activations and cache", "w8a8 fixed activations", "w4a8"),
    *("w4a8 groups", "gptq groups of 16", "gptq 3 bits in groups of 16", "awq groups of 16", "w4a16 groups of 16"),
    *("w8a16 groups of 16", "w8a8 groups of 16", "mxfp4", "modelopt fp8", "modelopt fp8 rows"),
    *("modelopt fp8 blocks", "nvfp4", "modelopt nvfp4", "mxfp8", "modelopt mxfp8"),
)
_OF_EXPERTS = (("qwen2_moe", "awq"), ("qwen2_moe", "fp8 blocks"), ("deepseek", "w4a16"), ("deepseek", "w8a8"))
# Two types in a file: that of the matrices, and that of the embedding where one follows.
_BLOCKS = (
    *(
        f"llama-{kind}"
        for kind in (
            *("Q8_0+F16", "Q4_0+F32", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K+Q6_K", "Q5_K", "Q6_K", "IQ4_NL"),
            *("IQ4_XS", "MXFP4", "F32", "F16", "BF16", "IQ3_XXS", "IQ3_S", "IQ2_XXS", "IQ2_XS", "IQ2_S"),
        )
    ),
    *("qwen3_moe-Q8_0", "qwen3_moe-Q4_K", "deepseek_v3-Q8_0", "deepseek_v3-Q4_K"),
)
_OPTIONS = {
    "int8": ("--quantization", "int8", "--quantize-lm-head"),
    "int4": ("--quantization", "int4"),
    "int4, activations int8": ("--quantization", "int4", "--activation-dtype", "int8"),
    "fp8": ("--quantization", "fp8"),
    "cache int8": ("--kv-cache-dtype", "int8"),
    "cache fp8": ("--kv-cache-dtype", "fp8_e4m3"),
    "no cache": ("--no-prefix-cache",),
    "steps of 32": ("--chunked-prefill-size", "32", "--no-overlap"),
}
_MORE = (
    ("family-qwen3_moe", "experts int8", ("--quantization", "int8")),
    ("family-qwen3_moe", "experts int4", ("--quantization", "int4")),
    ("family-deepseek_v3", "latents int8", ("--quantization", "int8")),
    ("family-deepseek_v3", "no cache", ("--no-prefix-cache",)),
    ("family-gemma2", "cache int8", ("--kv-cache-dtype", "int8")),
    ("family-deepseek_v3", "divided sequences", ("--tp", "2", "--context-parallel-from", "1")),
    ("family-gemma3", "reference", ("--backend", "reference")),
    ("family-deepseek_v3", "reference", ("--backend", "reference")),
    ("layout-llama-awq", "as bf16", ("--quantization", "bf16")),
    ("mxfp4-gpt_oss", "as published", ()),
    ("mxfp4-gpt_oss", "2 ranks", ("--tp", "2", "--activation-dtype", "int8")),
    ("family-llama-tied", "int8, 2 ranks", ("--tp", "2", "--quantization", "int8")),
)


def layout_checkpoint(layout: str, experts: str = "llama") -> str:
    """Return the name of the checkpoint in one of the published layouts."""
    return f"layout-{experts}-{layout.replace(' ', '_')}"


SERVERS = (
    *(Served(f"layout {layout}", layout_checkpoint(layout), token_cases()) for layout in _LAYOUTS),
    *(
        Served(f"layout {layout}, {experts}", layout_checkpoint(layout, experts), token_cases())
        for experts, layout in _OF_EXPERTS
    ),
    *(Served(f"GGUF type {kind}", f"blocks-{kind}.gguf", token_cases()) for kind in _BLOCKS),
    *(Served(f"option {name}", "family-llama-untied", token_cases(), options) for name, options in _OPTIONS.items()),
    *(Served(f"{model}, {name}", model, token_cases(), options) for model, name, options in _MORE),
)
