"""Promise: adapters change no bit of sequences without one, and a sequence has its own bits in any company."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import transformers as hf
from numaserve.workers.interface.protocol import PAGE_SIZE, SamplingParams, SeqPlan, SlotInit, StepPlan
from numaserve.workers.interface.settings import AS_PUBLISHED, WeightFormats

from tests.support import checkpoints
from tests.support.lora import random_adapter, save_gguf_adapter
from tests.support.published_checkpoints import small_hybrid
from tests.support.rank_group import RankGroup

_CONTEXT = 128
_PAGES = _CONTEXT // PAGE_SIZE
_ANSWER = 4  # tokens
_SAMPLING = SamplingParams(temperature=0.0, logprobs=2)
_INT4, _INT8 = WeightFormats("int4", None, "int8"), WeightFormats("int8")
# Names of checkpoints, and the formats that they are served in.
CASES = [
    ("llama-untied", _INT8),
    ("llama-untied", _INT4),
    ("deepseek_v3", AS_PUBLISHED),
    ("qwen3_next", AS_PUBLISHED),
]


@dataclass(frozen=True)
class Text:
    """A prompt, and the number of its adapter."""

    tokens: list[int]
    adapter: int


@dataclass(frozen=True)
class Served:
    """A model with two adapters, and the same model without any."""

    group: RankGroup
    plain: RankGroup
    adapters: list[Path]


Answers = list[list[object]]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]}*{case[1].linear}")
def case(request: pytest.FixtureRequest) -> tuple[str, WeightFormats]:
    return request.param


@pytest.fixture(scope="module")
def served(
    case: tuple[str, WeightFormats], isa: str, tp: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    name, formats = case
    folder, model = tmp_path_factory.mktemp(name), checkpoints.random_model(name)
    base = checkpoints.save(model, folder / "base")
    # One of all matrices, and one of queries and values alone with a rank of its own.
    adapters = [
        random_adapter(model, rank=8, seed=1).save(folder / "all"),
        random_adapter(model, rank=3, seed=2, wanted=lambda each: not each.endswith("o_proj")).save(folder / "some"),
    ]
    limits = {"num_pages": 8 * _PAGES, "context_length": _CONTEXT, "max_slots": 8, "formats": formats, "isa": isa}
    with (
        RankGroup(base, tp, adapters=adapters, max_lora_rank=8, **limits) as group,
        RankGroup(base, tp, **limits) as plain,
    ):
        yield Served(group, plain, adapters)


def answers(group: RankGroup, texts: Sequence[Text], chunk: int = _CONTEXT) -> Answers:
    """The log-probabilities of prompts, and some sampled tokens with theirs; all texts are in the same steps."""
    found: Answers = [[] for _ in texts]
    step = 0
    for begin in range(0, max(len(text.tokens) for text in texts), chunk):
        plans, of = [], []
        for slot, text in enumerate(texts):
            part = text.tokens[begin : begin + chunk]
            if not part:
                continue
            init = SlotInit(_SAMPLING, adapter=text.adapter) if begin == 0 else None
            pages = list(range(slot * _PAGES, (slot + 1) * _PAGES)) if begin == 0 else []
            end = begin + len(part)
            of.append(slot)
            plans.append(
                SeqPlan(
                    slot,
                    begin,
                    part,
                    pages=pages,
                    init=init,
                    sample=end == len(text.tokens),
                    prompt_logprobs=text.tokens[begin + 1 : end + 1],
                )
            )
        result = group.run(StepPlan(step := step + 1, plans))
        for slot, each in zip(of, result.seqs, strict=True):
            found[slot] += [*each.prompt_logprobs, *([each.logprobs] if each.token >= 0 else [])]
    for extra in range(_ANSWER):
        plans = [
            SeqPlan(slot, len(text.tokens) + extra, [], from_previous=True, sample=True)
            for slot, text in enumerate(texts)
        ]
        result = group.run(StepPlan(step := step + 1, plans))
        for slot, each in enumerate(result.seqs):
            found[slot].append(each.logprobs)
    return found


def _texts() -> list[Text]:
    random = np.random.default_rng(0)
    lengths, adapters = (37, 5, 50, 20, 41, 33), (1, 0, 2, 0, 1, 2)
    return [
        Text(random.integers(3, checkpoints.VOCAB, length).tolist(), adapter)
        for length, adapter in zip(lengths, adapters, strict=True)
    ]


# One test: each case starts two groups of ranks.
def test_a_sequence_has_the_same_bits_with_and_without_others_and_their_adapters(served: Served) -> None:
    texts = _texts()
    mixed = answers(served.group, texts)
    plain = answers(served.plain, [Text(each.tokens, 0) for each in texts])
    for text, with_others, alone in zip(texts, mixed, plain, strict=True):
        assert (with_others == alone) == (text.adapter == 0)
    assert mixed == [answers(served.group, [text])[0] for text in texts]
    for chunk in (1, 7, 32):
        assert answers(served.group, texts, chunk) == mixed, chunk


@pytest.mark.parametrize(
    "make",
    [lambda: checkpoints.random_model("llama-untied"), lambda: small_hybrid("qwen3_5")],
    ids=["llama", "qwen3_5"],
)
def test_adapters_of_both_kinds_of_files_do_the_same_on_both_kinds_of_bases(
    make: Callable[[], hf.PreTrainedModel], tmp_path: Path
) -> None:
    model = make()
    file = checkpoints.save_gguf(model, tmp_path / "base.gguf", "BF16")
    base = checkpoints.save(model, tmp_path / "base")
    adapter = random_adapter(model, rank=2)
    adapters = [adapter.save(tmp_path / "peft"), save_gguf_adapter(adapter, model, tmp_path)]
    texts = [Text(each.tokens, adapter) for adapter in (1, 2) for each in _texts()[:2]]
    found = []
    for path in (base, file):
        with RankGroup(path, adapters=adapters, num_pages=8 * _PAGES, context_length=_CONTEXT, max_slots=8) as group:
            found.append(answers(group, texts))
            assert found[-1][:2] == found[-1][2:]
            assert answers(group, [Text(each.tokens, 0) for each in texts])[:2] != found[-1][:2]
    assert found[0] == found[1]
