"""The models and requests with which answers are compared to the last bit."""

import functools
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import transformers as hf
from numaserve.server.scheduler.adapter import Adapter
from numaserve.server.scheduler.sequence import SchedulerConfig
from numaserve.server.tokenizer import load_tokenizer
from numaserve.workers.interface.protocol import SamplingParams, WeightsCache
from numaserve.workers.interface.settings import BF16_WEIGHTS, WeightFormat, WeightFormats

from tests.support import checkpoints, gemma4
from tests.support.demo import ALICE
from tests.support.families import row
from tests.support.families.nested import around
from tests.support.lora import random_adapter
from tests.support.plan_limits import plan_limits, with_limits
from tests.support.published_checkpoints import save_kimi, small_kimi
from tests.support.published_mxfp4 import save_mxfp4
from tests.support.rank_group import RankGroup
from tests.support.traffic import Request

BATCH = 16
CONTEXT = 768
NUM_PAGES = 512
FEW_PAGES = 26  # the longest request needs 19
DEMO_FEW_PAGES = 6  # the longest request needs 3
FEWEST_PAGES = 11  # of `few_requests`: the longest needs 10
# Around the edges of pages (32), row blocks (32), attention blocks (256) and chunks (64, 512).
LENGTHS = (1, 2, 31, 32, 33, 63, 64, 65, 100, 128, 129, 200, 255, 256, 257, 300, 320, 511, 513, 600)
LONG_OUTPUTS = (0, 3, 4, 6, 7, 8, 9)  # requests that grow by two pages or three: they make others give way
SHARED_PREFIX = 70

_HYBRID = ["linear_attention", "full_attention"]
_EXPERTS = {
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 72,
    "num_experts": 6,
    "num_experts_per_tok": 2,
}
# Windows and soft caps, norms after each sub-layer, heads that two ranks divide unevenly; small, since the emulated
# tiles are slow.
_SIZES = {
    "llama": lambda more: hf.LlamaConfig(**checkpoints.sizes(144, 9, 3, 160, head_dim=16, **more)),
    # Two ranks divide the query heads of a KV head.
    "qwen3": lambda more: hf.Qwen3Config(**checkpoints.sizes(96, 12, 3, 96, head_dim=32, **more)),
    "gemma2": lambda more: hf.Gemma2Config(
        **checkpoints.sizes(96, 3, 3, 96, head_dim=32, sliding_window=100, attn_logit_softcapping=5.0, **more)
    ),
    "qwen2_moe": lambda more: hf.Qwen2MoeConfig(
        **checkpoints.sizes(96, 3, 3, 96, moe_intermediate_size=80, shared_expert_intermediate_size=128, **more),
        num_experts=6,
        num_experts_per_tok=2,
    ),
    "deepseek_v3": lambda more: hf.DeepseekV3Config(
        **checkpoints.sizes(96, 3, 3, 96, q_lora_rank=40, kv_lora_rank=64, first_k_dense_replace=1, **more),
        **row.LATENT_HEADS,
        moe_intermediate_size=64,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_group=4,
        topk_group=2,
    ),
    "mixtral": lambda more: hf.MixtralConfig(
        **checkpoints.sizes(96, 6, 2, 72, head_dim=16, num_local_experts=5, sliding_window=100, **more)
    ),
    "qwen3_moe": lambda more: hf.Qwen3MoeConfig(
        **checkpoints.sizes(96, 4, 1, 96, head_dim=32, moe_intermediate_size=64, norm_topk_prob=True, **more),
        num_experts=12,
        num_experts_per_tok=4,
    ),
    "deepseek_v2": lambda more: hf.DeepseekV2Config(
        **checkpoints.sizes(160, 5, 5, 96, q_lora_rank=None, kv_lora_rank=96, first_k_dense_replace=0, **more),
        **row.LATENT_HEADS,
        **checkpoints.rope("yarn", factor=4.0, original_max_position_embeddings=128, mscale=0.7, mscale_all_dim=0.7),
        moe_intermediate_size=40,
        n_routed_experts=6,
        num_experts_per_tok=3,
        n_shared_experts=2,
        topk_method="greedy",
    ),
    "gpt_oss": lambda more: hf.GptOssConfig(
        **checkpoints.sizes(96, 6, 3, 160, head_dim=32, num_local_experts=5, num_experts_per_tok=2, **more),
        **checkpoints.rope("yarn", factor=4.0, original_max_position_embeddings=128, truncate=False),
        sliding_window=100,
        swiglu_limit=1.5,
    ),
    "glm4_moe": lambda more: hf.Glm4MoeConfig(
        **checkpoints.sizes(96, 6, 2, 96, head_dim=16, moe_intermediate_size=64, num_experts_per_tok=2, **more),
        n_routed_experts=8,
        n_group=4,
        topk_group=2,
        use_qk_norm=True,
    ),
    "glm4_moe_lite": lambda more: hf.Glm4MoeLiteConfig(
        **checkpoints.sizes(96, 3, 3, 96, q_lora_rank=40, kv_lora_rank=64, first_k_dense_replace=1, **more),
        qk_nope_head_dim=96,
        qk_rope_head_dim=32,
        v_head_dim=128,
        moe_intermediate_size=64,
        n_routed_experts=8,
        num_experts_per_tok=3,
    ),
    "mistral4": lambda more: around(
        "mistral3",
        hf.Mistral4Config(
            **checkpoints.sizes(96, 3, 3, 96, q_lora_rank=40, kv_lora_rank=64, **more),
            **row.LATENT_HEADS,
            **checkpoints.rope("yarn", factor=4.0, original_max_position_embeddings=40, llama_4_scaling_beta=0.1),
            moe_intermediate_size=64,
            n_routed_experts=8,
            num_experts_per_tok=3,
        ),
    ),
    "smollm3": lambda more: hf.SmolLM3Config(
        **checkpoints.sizes(96, 6, 3, 96, sliding_window=100, use_sliding_window=True, **more), no_rope_layer_interval=2
    ),
    "ernie4_5": lambda more: hf.Ernie4_5Config(**checkpoints.sizes(96, 6, 3, 96, head_dim=16, **more)),
    "ministral3": lambda more: hf.Ministral3Config(
        **checkpoints.sizes(96, 6, 3, 96, head_dim=16, **more),
        **checkpoints.rope("yarn", factor=4.0, original_max_position_embeddings=40, llama_4_scaling_beta=0.1),
    ),
    "hunyuan": lambda more: hf.HunYuanDenseV1Config(
        **checkpoints.sizes(96, 6, 3, 96, head_dim=16, **more), **checkpoints.rope("dynamic", alpha=50.0, factor=1.0)
    ),
    "olmo2": lambda more: hf.Olmo2Config(**checkpoints.sizes(96, 6, 1, 96, **more)),
    "olmo3": lambda more: hf.Olmo3Config(
        **checkpoints.sizes(96, 6, 3, 96, sliding_window=100, **more),
        **row.OLMO3_ROPE,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "minimax_m2": lambda more: hf.MiniMaxM2Config(
        **checkpoints.sizes(96, 6, 3, 96, head_dim=32, num_local_experts=6, num_experts_per_tok=2, **more),
        rotary_dim=16,
    ),
    "mimo_v2_flash": lambda more: hf.MiMoV2FlashConfig(
        **checkpoints.sizes(96, 6, 3, 96, head_dim=48, v_head_dim=32, moe_intermediate_size=64, **more),
        n_routed_experts=8,
        num_experts_per_tok=2,
        sliding_window=100,
    ),
    "llama4": lambda more: hf.Llama4TextConfig(
        **checkpoints.sizes(96, 6, 3, 64, head_dim=16, intermediate_size_mlp=96, num_local_experts=5, **more),
        attention_chunk_size=100,
        floor_scale=40,
        no_rope_layers=[1, 0],
        moe_layers=[1],
    ),
    "gemma4": lambda more: gemma4.text_config(
        checkpoints.sizes(96, 6, 3, 96, layers=7, head_dim=16, global_head_dim=32, sliding_window=100, **more),
        **gemma4.SHARED,
    ),
    "gemma4-experts": lambda more: gemma4.text_config(
        checkpoints.sizes(96, 6, 3, 96, layers=3, head_dim=16, global_head_dim=32, sliding_window=100, **more),
        **gemma4.KEYS_ONLY,
        **gemma4.EXPERTS,
    ),
    "granite": lambda more: hf.GraniteConfig(
        **checkpoints.sizes(96, 6, 3, 96, **more), **row.GRANITE, residual_multiplier=0.22
    ),
    "qwen3_5": lambda more: hf.Qwen3_5TextConfig(
        **checkpoints.sizes(96, 6, 3, 96, head_dim=32, **more), **row.DELTA, layer_types=_HYBRID
    ),
    "qwen3_5_moe": lambda more: hf.Qwen3_5MoeTextConfig(
        **checkpoints.sizes(96, 6, 3, 96, head_dim=32, **more), **row.DELTA, layer_types=_HYBRID, **_EXPERTS
    ),
    "granite_hybrid": lambda more: hf.GraniteMoeHybridConfig(
        **checkpoints.sizes(
            96, 6, 3, 72, shared_intermediate_size=96, num_local_experts=5, num_experts_per_tok=2, **more
        ),
        layer_types=["mamba", "attention"],
        mamba_n_heads=6,
        mamba_n_groups=2,
        mamba_d_state=24,
    ),
    "nemotron_h": lambda more: hf.NemotronHConfig(
        **checkpoints.COMMON | more,
        layers_block_type=["mamba", "moe", "attention", "mlp"],
        hidden_size=96,
        num_attention_heads=6,
        num_key_value_heads=3,
        head_dim=16,
        intermediate_size=96,
        ssm_state_size=24,
        mamba_num_heads=6,
        mamba_head_dim=32,
        n_groups=1,
        n_routed_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        moe_shared_expert_intermediate_size=72,
    ),
    "kimi_linear": lambda more: hf.KimiLinearConfig(
        **checkpoints.sizes(96, 3, 3, 96, kv_lora_rank=64, num_local_experts=6, num_experts_per_tok=2, **more),
        **row.LATENT_HEADS,
        layer_types=["linear_attention", "full_attention"],
        mlp_layer_types=["dense", "sparse"],
        linear_num_heads=4,
        linear_head_dim=24,
        moe_intermediate_size=64,
    ),
    "lfm2": lambda more: hf.Lfm2Config(
        **checkpoints.sizes(96, 6, 3, 96, **more), layer_types=["conv", "full_attention"], conv_L_cache=4
    ),
    "lfm2_moe": lambda more: hf.Lfm2MoeConfig(
        **checkpoints.sizes(96, 6, 3, 96, moe_intermediate_size=64, num_experts=6, num_experts_per_tok=2, **more),
        layer_types=["conv", "full_attention"],
        num_dense_layers=1,
    ),
    "qwen3_next": lambda more: hf.Qwen3NextConfig(
        **checkpoints.sizes(96, 6, 3, 96, head_dim=32, **more), **row.DELTA, layer_types=_HYBRID, **_EXPERTS
    ),
}
TINY_MODELS = ("llama", "qwen3", "gemma2", "qwen2_moe", "deepseek_v3", "gpt_oss")  # for every instruction set
DENSE_MODELS = (
    "smollm3",
    "ministral3",
    "granite",
    "ernie4_5",
    "hunyuan",
    "olmo2",
    "olmo3",
    "gemma4",
)  # what few families have, with kernels that all have
EXPERT_MODELS = (
    *("mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3", "gpt_oss", "glm4_moe", "glm4_moe_lite"),
    *("mistral4", "minimax_m2", "llama4", "gemma4-experts", "mimo_v2_flash"),
)
MXFP4_MODEL = "gpt_oss-mxfp4"  # as it is published
KIMI_MODEL = "kimi_k25-int4"  # likewise
ADAPTED_MODEL = "llama-lora"  # with two adapters; see `adapted`
QUANTIZED = [
    *(WeightFormats(each, each, "int8") for each in get_args(WeightFormat) if each != "bf16"),
    WeightFormats("int4", "int8_group", "bf16"),
]

GREEDY = SamplingParams(temperature=0.0, logprobs=5)
SAMPLED = (
    SamplingParams(temperature=0.8, top_p=0.9, seed=1, logprobs=5),
    SamplingParams(temperature=1.2, top_k=40, seed=2, logprobs=5, repetition_penalty=1.2, token_ids_logprob=[3, 200]),
    SamplingParams(
        temperature=1.0, min_p=0.02, seed=3, presence_penalty=0.5, frequency_penalty=0.5, token_ids_logprob=[7]
    ),
)


def tiny_model(name: str, **fields: object) -> hf.PreTrainedModel:
    """One of `_SIZES` with random weights, and more `fields` in its configuration."""
    config = _SIZES[name]({"max_position_embeddings": CONTEXT, **fields})
    return checkpoints.randomise(checkpoints.blank_model(config))


def save_tiny_model(name: str, folder: Path) -> Path:
    """Write one of `_SIZES`, `MXFP4_MODEL` or `KIMI_MODEL`, with random weights."""
    folder.mkdir(exist_ok=True)
    for file, content in _tiny_checkpoint(name).items():
        (folder / file).write_bytes(content)
    return folder


@functools.cache
def _tiny_checkpoint(name: str) -> dict[str, bytes]:
    """The files of a tiny model by their names. transformers takes longer to make them than most tests to use them."""
    if name == KIMI_MODEL:
        model = small_kimi(max_position_embeddings=CONTEXT)
    else:
        model = tiny_model(name.removesuffix("-mxfp4").removesuffix("-lora"))
    with tempfile.TemporaryDirectory() as folder:
        save = {MXFP4_MODEL: save_mxfp4, KIMI_MODEL: save_kimi}.get(name, checkpoints.save)
        return {file.name: file.read_bytes() for file in save(model, Path(folder)).iterdir()}


def save_adapters(folder: Path) -> list[Path]:
    """Write the adapters of `ADAPTED_MODEL`: one of all matrices, and one of some with a rank of its own."""
    model = tiny_model("llama")
    return [
        random_adapter(model, rank=8, seed=1).save(folder / "all"),
        random_adapter(model, rank=3, seed=2, wanted=lambda each: not each.endswith("o_proj")).save(folder / "some"),
    ]


def adapted(requests: Sequence[Request]) -> list[Request]:
    """Return the same requests, alternately without an adapter and with each of those that `save_adapters` writes."""
    adapters = [None, *(Adapter(name, name, number, number, name, 8, 8.0, 14) for number, name in enumerate("ab", 1))]
    return [replace(request, adapter=adapters[index % 3]) for index, request in enumerate(requests)]


def scheduler_config(**changes: Any) -> SchedulerConfig:
    """The limits of the workers that `make_group` starts, without a prefix cache, and `changes` to them."""
    config = plan_limits(
        num_pages=NUM_PAGES,
        context_length=CONTEXT,
        max_slots=BATCH,
        max_step_tokens=512,
        max_logit_rows=64,
        enable_prefix_cache=False,
    )
    return with_limits(config, **changes)


def make_group(
    model: Path,
    tp: int,
    *,
    isa: str | None = None,
    threads: int = 1,
    formats: WeightFormats = BF16_WEIGHTS,
    weights_cache: WeightsCache | None = None,
    draft_model: Path | None = None,
    **settings: Any,
) -> RankGroup:
    """Workers with room for `scheduler_config`; `settings` are those of `ModelSettings`."""
    limits = scheduler_config().capacity
    return RankGroup(
        model,
        tp,
        isa=isa,
        threads=threads,
        num_pages=limits.num_pages,
        context_length=limits.context_length,
        max_slots=limits.max_slots,
        max_step_tokens=limits.max_step_tokens,
        max_logit_rows=limits.max_logit_rows,
        formats=formats,
        weights_cache=weights_cache,
        draft_model=draft_model,
        **settings,
    )


def ways_to_serve(group: RankGroup) -> list[tuple[int, dict[str, Any]]]:
    """Return changes of `scheduler_config`, each with one or two plans in flight: with another number for two ranks."""
    ways = (
        {},
        {"max_step_tokens": 64},
        {"enable_prefix_cache": True},
        {"enable_prefix_cache": True, "num_pages": FEW_PAGES},
    )
    return [(1 + (index + len(group.ready)) % 2, changes) for index, changes in enumerate(ways)]


def random_requests() -> list[Request]:
    """Twenty requests: most greedy, all with logprobs, two with those of the prompt too."""
    rng = np.random.default_rng(0)
    shared = rng.integers(3, checkpoints.VOCAB, SHARED_PREFIX).tolist()
    requests = []
    for index, length in enumerate(LENGTHS):
        own = rng.integers(3, checkpoints.VOCAB, length).tolist()
        prompt = own if index % 2 else (shared + own)[:length]
        sampling = SAMPLED[index // 3 % 3] if index % 3 == 0 else GREEDY
        count = 66 if index in LONG_OUTPUTS else 6
        requests.append(Request(prompt, sampling, count, prompt_logprobs=index in {9, 17}))
    return requests


def few_requests() -> list[Request]:
    """Some of them, around the edges of pages, row blocks and attention blocks; five of them grow by a page."""
    requests = random_requests()
    few = [replace(requests[index], max_new_tokens=40) for index in (0, 3, 4, 7, 9)]
    return few + [requests[index] for index in (11, 14, 15)]


def demo_requests(path: Path) -> list[Request]:
    """Five greedy requests of real text for the demo model at `path`."""
    text = load_tokenizer(path).encode(ALICE)
    return [Request(text[17 * i : 18 * i + 20 * (i % 4) + 5], GREEDY, 30 if i < 3 else 4) for i in range(5)]
