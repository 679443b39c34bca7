"""What is expected of a machine with AMX, as data: `bench_amx.py` measures it.

A goal is a fraction of the machine's own ceilings in the same run, or of another figure of the run. It is met by the
worst of the rows that it is about. The peak is that of tiles of zeros. The fractions of the peak of random tiles and of
the nest, which a product can reach at most, are printed as well.
"""

from tests.bench.goals import (
    EVERY,
    LARGE,
    LARGE_SHARE,
    MIXTURE,
    PROMPT,
    SHARED,
    STREAMS,
    Elsewhere,
    Goal,
    attention,
    experts,
    operations,
    other_operations,
    products,
    share,
    speed_over_bf16,
)

_BY_SWEEP = "Sizes of blocks: run `numaserve bench kernels --sweep --write FILE` on this machine"
_SHARES = "`least_copied_pairs`: the pairs of panels from which on a share copies its activations"
_SMALL_BATCH = "`few_rows`: the rows from which on activations are copied and sums stay in tiles"
_DECODE = "Distance of the prefetch of weights that are read once"
_WIDENED = "Weights that are rounded while they are widened, from 5 rows on, instead of exact ones"
_SOFTMAX = "Keys of a block of attention: 128 for heads of 64, 64 for heads of 128. That changes bits"
_GAP = "Stores of results and ends of blocks: a product does nothing else that the nest does not do"

GOALS: dict[str, tuple[Goal, ...]] = {
    "Llama-1B, products, of the ceiling": (
        Goal("bf16, gate_up, M = 512", products(512, "bf16", ("gate_up",), of="caches"), _BY_SWEEP, least=0.50),
        Goal(
            "bf16, gate_up, M = 512, from memory",
            products(512, "bf16", ("gate_up",)),
            "Row blocks of 512, which read weights from memory half as often",
            least=0.44,
        ),
        Goal(
            "bf16, o and down, M = 512",
            products(512, "bf16", ("o", "down"), of="caches"),
            "Lines of the residual stream that are fetched ahead; sums of more pairs in the second level",
            least=0.45,
        ),
        Goal("bf16, M = 128, from memory", products(128, "bf16", EVERY), _BY_SWEEP, least=0.85),
        Goal("bf16, M = 64, from memory", products(64, "bf16", EVERY), _SMALL_BATCH, least=0.75),
        Goal("int8, M = 64, from memory", products(64, "int8", EVERY), _SMALL_BATCH, least=0.75),
        Goal("int8, gate_up, M = 512", products(512, "int8", ("gate_up",), of="caches"), _BY_SWEEP, least=0.50),
        Goal(
            "int8, down, M = 512",
            products(512, "int8", ("down",), of="caches"),
            "Rows of int8 in the order of tiles, as `quantize` could write them",
            least=0.45,
        ),
    ),
    "Llama-1B, products of 512 rows from memory, of the nest": (
        Goal("bf16", products(512, "bf16", ("gate_up", "o", "down")), _GAP, least=0.88, figure="of_nest"),
        Goal("int8", products(512, "int8", ("gate_up", "o", "down")), _GAP, least=0.88, figure="of_nest"),
    ),
    "one thread's share of 43, M = 512, of the peak": (
        Goal("bf16, Llama-8B, gate_up", share(LARGE, "bf16", ("gate_up",)), _SHARES, least=0.45),
        Goal("bf16, Llama-8B, qkv, o and down", share(LARGE, "bf16", ("qkv", "o", "down")), _SHARES, least=0.42),
        Goal("bf16, Llama-70B on six nodes", share(LARGE_SHARE, "bf16", EVERY), _SHARES, least=0.42),
        Goal("int8, Llama-8B", share(LARGE, "int8", EVERY), _SHARES, least=0.42),
        Goal("int8, Llama-70B on six nodes", share(LARGE_SHARE, "int8", EVERY), _SHARES, least=0.42),
    ),
    "Llama-1B, M = 512, speed over bf16's": (
        Goal("int4 in groups of 32, times bf16", speed_over_bf16("int4/32"), _WIDENED, least=0.85, figure="of_bf16"),
        Goal("int4 in groups of 128, times bf16", speed_over_bf16("int4/128"), _WIDENED, least=0.85, figure="of_bf16"),
        Goal(
            "mxfp4, times bf16",
            speed_over_bf16("mxfp4/32"),
            "Exponents that are added while codes are widened, which is exact",
            least=0.85,
            figure="of_bf16",
        ),
        Goal("fp8, times bf16", speed_over_bf16("fp8/128"), _WIDENED, least=0.55, figure="of_bf16"),
    ),
    "Llama-8B, products from memory, of the ceiling": (
        Goal("bf16, M = 1", products(1, "bf16", EVERY, model=LARGE), _DECODE, least=0.95),
        Goal("int8, gate_up, M = 1", products(1, "int8", ("gate_up",), model=LARGE), _DECODE, least=0.95),
        Goal("int4, gate_up, M = 1", products(1, "int4/128", ("gate_up",), model=LARGE), _DECODE, least=0.88),
        Goal("int4, o and down, M = 1", products(1, "int4/128", ("o", "down"), model=LARGE), _DECODE, least=0.85),
        Goal("int8, M = 512", products(512, "int8", EVERY, model=LARGE), _BY_SWEEP, least=0.42),
    ),
    "attention of prompts, of the peak": (
        Goal("1024 tokens, head_dim 64", attention(64, 1024), _SOFTMAX, least=0.21),
        Goal("4096 tokens, head_dim 64", attention(64, 4096), _SOFTMAX, least=0.24),
        Goal("1024 tokens, head_dim 128", attention(128, 1024), _SOFTMAX, least=0.27),
        Goal("4096 tokens, head_dim 128", attention(128, 4096), _SOFTMAX, least=0.29),
    ),
    "Llama-1B, a prompt of 1024, bf16, of the ceiling": (
        Goal("gate_up", operations(PROMPT, "prefill", "gate_up"), _BY_SWEEP, least=0.45),
        Goal(
            "o and down",
            operations(PROMPT, "prefill", "linear_partial"),
            "Attention that writes its results in the order of tiles",
            least=0.42,
        ),
        Goal(
            "qkv",
            operations(PROMPT, "prefill", "linear"),
            "Results in fp32 that are written past the caches",
            least=0.42,
        ),
        Goal("attention", operations(PROMPT, "prefill", "attention"), _SOFTMAX, least=0.18),
        Goal(
            "neither product nor attention, of the time",
            other_operations(PROMPT, "prefill"),
            "Operations that are joined with their neighbours",
            most=0.12,
            figure="share",
        ),
    ),
    # Contexts of 64 to 580 tokens, in bf16.
    "SmolLM2-135M, 64 sequences, of the bandwidth": (
        Goal("attention", operations(STREAMS, "decode", "attention"), _DECODE, least=0.85, figure="of_read"),
        Goal("gate_up", operations(STREAMS, "decode", "gate_up"), _SMALL_BATCH, least=0.75, figure="of_read"),
    ),
    "experts, 1024 tokens, bf16, of the ceiling": (
        Goal(
            "Qwen3-MoE's proportions, moe_gate_up",
            experts(MIXTURE, "moe_gate_up"),
            "The first block of the next expert, fetched ahead",
            least=0.50,
        ),
        Goal(
            "Qwen3-MoE's proportions, moe_down",
            experts(MIXTURE, "moe_down"),
            "Sums of experts in chunks of columns, which stay in the second level",
            least=0.45,
        ),
        Goal("DeepSeek-V3's proportions, moe_gate_up", experts(SHARED, "moe_gate_up"), _BY_SWEEP, least=0.65),
        Goal("DeepSeek-V3's proportions, moe_down", experts(SHARED, "moe_down"), _BY_SWEEP, least=0.60),
    ),
}

_COMPARE = "bench compare, with another server"
# Llama-1B's shape where no other model is named.
ELSEWHERE = (
    Elsewhere("bf16, TTFT of 1024 tokens, of vLLM's", "≤ 0.66 x", _COMPARE),
    Elsewhere("bf16, 16 clients, 256 tokens in, 64 out: tokens/s, of vLLM's", "≥ 1.40 x", _COMPARE),
    Elsewhere("int8, TTFT of 1024 tokens, of the earlier release's", "≤ 0.85 x", "bench compare, with that release"),
    Elsewhere("Q4_0, 4 prompts of 32 tokens at once: median TTFT, of llama-server's", "≤ 1.00 x", _COMPARE),
    Elsewhere("Qwen3-MoE's proportions, bf16, TTFT of 1024 tokens, of vLLM's", "≤ 0.72 x", _COMPARE),
    Elsewhere("Qwen3-MoE's proportions, bf16, 16 clients: tokens/s, of vLLM's", "≥ 1.3 x", _COMPARE),
    Elsewhere("DeepSeek-V3's heads, bf16, TTFT of 1024 tokens, of vLLM's", "≤ 0.72 x", _COMPARE),
    Elsewhere("DeepSeek-V3's heads, bf16, 16 clients: tokens/s, of vLLM's", "≥ 1.3 x", _COMPARE),
)
