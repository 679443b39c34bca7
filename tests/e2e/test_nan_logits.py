"""Models that give NaN: only the requests that see it end, those beside them keep every bit, and nothing stays."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numaserve.workers.interface.settings import BF16_WEIGHTS, KvCacheDtype, WeightFormats

from tests.support import checkpoints
from tests.support.same_bits import GREEDY, QUANTIZED, SAMPLED, make_group, scheduler_config, tiny_model
from tests.support.traffic import Request, Traffic, each_alone

SPOILED = 77  # its embedding is NaN
SHARED = 70  # tokens that all prompts begin with: two pages, and a part of the third
INT8_GROUPS = next(each for each in QUANTIZED if each.linear == "int4" and each.activations == "int8")

CASES: list[tuple[str, WeightFormats, KvCacheDtype, int]] = [
    ("llama", BF16_WEIGHTS, "bf16", 2),
    ("llama", QUANTIZED[0], "fp8_e4m3", 1),
    ("gemma2", BF16_WEIGHTS, "int8", 1),
    ("qwen2_moe", BF16_WEIGHTS, "bf16", 2),
    ("qwen3_moe", INT8_GROUPS, "bf16", 1),
    ("deepseek_v3", BF16_WEIGHTS, "bf16", 1),
]


def tokens(count: int, seed: int) -> list[int]:
    drawn = np.random.default_rng(seed).integers(3, checkpoints.VOCAB, count).tolist()
    return [token if token != SPOILED else SPOILED + 1 for token in drawn]


def good_requests() -> list[Request]:
    prompts = [tokens(SHARED, 0) + tokens(index * 17 % 60 + 1, index) for index in range(6)]
    return [
        Request(prompt, SAMPLED[index % 3] if index % 2 else GREEDY, 20, prompt_logprobs=index == 4)
        for index, prompt in enumerate(prompts)
    ]


def spoiled_requests() -> list[Request]:
    """With the token first, last, in the middle of a page and of a chunk, and echoed."""
    shared, rest = tokens(SHARED, 0), tokens(50, 9)
    prompts = [[SPOILED], [*shared, SPOILED], [*shared, *rest[:13], SPOILED, *rest], [SPOILED, *shared, *rest]]
    requests = [Request(prompt, SAMPLED[index % 3], 30) for index, prompt in enumerate(prompts)]
    return [*requests, replace(requests[2], prompt_logprobs=True, max_new_tokens=0)]


@pytest.mark.parametrize(("name", "formats", "kv_cache_dtype", "tp"), CASES)
@pytest.mark.parametrize("isa", [None, "portable"])
def test_requests_that_see_a_nan_end_and_the_others_keep_every_bit(
    name: str, formats: WeightFormats, kv_cache_dtype: KvCacheDtype, tp: int, isa: str | None, tmp_path: Path
) -> None:
    model = tiny_model(name, tie_word_embeddings=False)
    with torch.no_grad():
        model.get_input_embeddings().weight[SPOILED] = math.nan
    checkpoints.save(model, tmp_path)
    good, spoiled = good_requests(), spoiled_requests()
    mixed = [request for pair in zip(spoiled, good, strict=False) for request in pair] + good[len(spoiled) :]
    experts = name == "qwen2_moe"
    formats_of = {"formats": formats, "kv_cache_dtype": kv_cache_dtype, "expert_parallel": experts}
    with make_group(tmp_path, tp, isa=isa, **formats_of) as group:
        alone = each_alone(group, scheduler_config(), good)
        assert not any(answer.nan for answer in alone)
        for ahead, step_tokens in ((1, 512), (2, 512), (2, 64)):
            # Few pages, so that those of the spoiled ones are given to others at once.
            config = scheduler_config(enable_prefix_cache=True, num_pages=40, max_step_tokens=step_tokens)
            traffic = Traffic(group, config, ahead=ahead)
            for _ in range(2):
                answers = traffic.serve(mixed)
                ended = [answer for answer in answers if answer.nan]
                assert len(ended) == len(spoiled)
                assert not any(answer.tokens for answer in ended)
                assert [answer for answer in answers if not answer.nan] == alone
            assert traffic.scheduler.stats().prefix_hit_tokens > 0


@pytest.mark.parametrize(
    "place",
    ["layers.0.self_attn.k_proj", "layers.0.self_attn.v_proj", "layers.1.self_attn.o_proj", "layers.1.mlp.down_proj"],
)
@pytest.mark.parametrize("kv_cache_dtype", ["bf16", "int8"])
def test_one_weight_that_is_no_number_ends_every_request(
    place: str, kv_cache_dtype: KvCacheDtype, tmp_path: Path
) -> None:
    model = tiny_model("llama", tie_word_embeddings=False)
    with torch.no_grad():
        model.get_submodule(f"model.{place}").weight[3, 5] = math.nan
    checkpoints.save(model, tmp_path)
    with make_group(tmp_path, 1, kv_cache_dtype=kv_cache_dtype) as group:
        answers = Traffic(group, scheduler_config(enable_prefix_cache=True), ahead=2).serve(good_requests())
        assert all(answer.nan for answer in answers)


def test_one_logit_that_is_no_number_is_enough(tmp_path: Path) -> None:
    model = tiny_model("llama", tie_word_embeddings=False)
    with torch.no_grad():
        model.get_output_embeddings().weight[400, 0] = math.nan
    checkpoints.save(model, tmp_path)
    for tp in (1, 2):
        with make_group(tmp_path, tp) as group:
            assert all(answer.nan for answer in Traffic(group, scheduler_config()).serve(good_requests()))
