"""Encoders on ranks: their vectors are those of transformers, with the same bits in any company."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from gguf import PoolingType
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.protocol import PAGE_SIZE, SamplingParams, SeqPlan, SlotInit, StepPlan
from numaserve.workers.interface.settings import ModelSettings, WeightFormats
from numaserve.workers.models.load import load_model_config
from safetensors.numpy import save_file

from tests.support import encoders, gguf_encoders
from tests.support.rank_group import RankGroup
from tests.support.sentence_folder import write_dense, write_modules

# Kernels are compared on every instruction set in tests/kernels: here each encoder runs on one.
pytestmark = pytest.mark.spread("isa")

TEXTS = encoders.texts(7)


def make_group(folder: Path, tp: int, **more: object) -> RankGroup:
    return RankGroup(folder, tp, context_length=encoders.CONTEXT, pooled=True, **more)


def whole(slot: int, tokens: list[int], first_page: int, second: int = 0) -> SeqPlan:
    """A prompt that is pooled, on pages of its own, whose second text begins at position `second`."""
    pages = range(first_page, first_page - (-len(tokens) // PAGE_SIZE))
    init = SlotInit(SamplingParams(), second_text=second)
    return SeqPlan(slot, 0, tokens, pages=list(pages), init=init, pool=True)


def embedded(
    group: RankGroup, prompts: Sequence[list[int]], step: int = 0, second: Sequence[int] | None = None
) -> list[bytes]:
    """The vectors of prompts that are together in one step."""
    plans, page = [], 0
    for slot, (prompt, at) in enumerate(zip(prompts, second or [0] * len(prompts), strict=True)):
        plans.append(whole(slot, prompt, page, at))
        page += len(plans[-1].pages)
    return [result.embedding for result in group.run(StepPlan(step, plans)).seqs]


def in_steps(group: RankGroup, prompts: Sequence[list[int]]) -> npt.NDArray[np.float64]:
    """The vectors of prompts in steps of a few, fp64 [prompts, hidden]."""
    found = [each for index in range(0, len(prompts), 3) for each in embedded(group, prompts[index : index + 3], index)]
    return np.stack([np.frombuffer(each, "<f4") for each in found]).astype(np.float64)


def cosines(some: npt.NDArray[np.float64], others: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return (some * others).sum(1) / (np.linalg.norm(some, axis=1) * np.linalg.norm(others, axis=1))


@pytest.mark.parametrize("tp", [1, 2, 3])
@pytest.mark.parametrize("name", encoders.CONFIGS)
def test_vectors_are_those_of_transformers(name: str, tp: int, isa: str, tmp_path: Path) -> None:
    model = encoders.random_encoder(name)
    exact = encoders.pooled(encoders.hidden_states(model, TEXTS), "mean")
    with make_group(encoders.save(name, model, tmp_path), tp, isa=isa) as group:
        assert cosines(in_steps(group, TEXTS), exact).min() >= 0.9999


@pytest.mark.spread("masked")
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", encoders.CONFIGS)
def test_the_reference_is_exact(name: str, masked: bool, tmp_path: Path) -> None:
    model = encoders.random_encoder(name, masked=masked)
    exact = encoders.pooled(encoders.hidden_states(model, TEXTS), "mean")
    with make_group(encoders.save(name, model, tmp_path), 1, backend="reference") as group:
        assert cosines(in_steps(group, TEXTS), exact).min() >= 0.9999


@pytest.mark.parametrize("pooling", ["cls", "max", "last"])
def test_the_pooling_is_that_of_sentence_transformers(pooling: str, tmp_path: Path) -> None:
    model = encoders.random_encoder("bert")
    exact = encoders.pooled(encoders.hidden_states(model, TEXTS), pooling)
    with make_group(encoders.save("bert", model, tmp_path, pooling), 2) as group:
        assert cosines(in_steps(group, TEXTS), exact).min() >= 0.9999


@pytest.mark.parametrize("tp", [1, 3])
@pytest.mark.parametrize("name", gguf_encoders.ARCHITECTURES)
def test_gguf_files_hold_the_same_encoders(name: str, tp: int, tmp_path: Path) -> None:
    model = encoders.random_encoder(name)
    exact = encoders.pooled(encoders.hidden_states(model, TEXTS), "mean")
    with make_group(gguf_encoders.save_gguf(name, model, tmp_path), tp) as group:
        assert cosines(in_steps(group, TEXTS), exact).min() >= 0.9999


@pytest.mark.spread("pooling")
@pytest.mark.parametrize("tp", [1, 2, 3])
@pytest.mark.parametrize("pooling", [None, PoolingType.RANK])
@pytest.mark.parametrize("name", gguf_encoders.CLASSIFIERS)
def test_gguf_files_hold_the_same_classifiers(name: str, pooling: PoolingType | None, tp: int, tmp_path: Path) -> None:
    model = encoders.random_classifier(name, 2)
    path = gguf_encoders.save_gguf(name, model, tmp_path, pooling=pooling, labels=["no", "yes"])
    with make_group(path, tp) as group, make_group(tmp_path, tp) as original:
        found = in_steps(group, TEXTS)
        assert np.array_equal(found, in_steps(original, TEXTS))
        np.testing.assert_allclose(sigmoid(found), sigmoid(encoders.logits(model, TEXTS)), atol=0.01)


@pytest.mark.parametrize("name", ["xlm-roberta", "modernbert"])
def test_quantized_gguf_files_hold_classifiers(name: str, tmp_path: Path) -> None:
    model = encoders.random_classifier(name, hidden_size=96, intermediate_size=160)
    with make_group(gguf_encoders.save_gguf(name, model, tmp_path, "Q8_0"), 2) as group:
        np.testing.assert_allclose(sigmoid(in_steps(group, TEXTS)), sigmoid(encoders.logits(model, TEXTS)), atol=0.03)


# The sizes fill blocks of 32.
@pytest.mark.parametrize("name", ["bert", "nomic-bert", "modernbert"])
def test_quantized_gguf_files_state_the_pooling(name: str, tmp_path: Path) -> None:
    model = encoders.random_encoder(name, hidden_size=96, head_dim=16, intermediate_size=160)
    exact = encoders.pooled(encoders.hidden_states(model, TEXTS), "cls")
    path = gguf_encoders.save_gguf(name, model, tmp_path, "Q8_0", PoolingType.CLS)
    with make_group(path, 2) as group:
        assert cosines(in_steps(group, TEXTS), exact).min() >= 0.999


# Weights of fp8 (e4m3) have three bits after the leading one: each is off by 2 % on average.
@pytest.mark.spread("quantization")
@pytest.mark.parametrize("quantization", ["int8", "fp8"])
@pytest.mark.parametrize("name", encoders.CONFIGS)
def test_quantized_weights_keep_vectors_near(name: str, quantization: str, tmp_path: Path) -> None:
    least = {"int8": 0.999, "fp8": 0.995}[quantization]
    model = encoders.random_encoder(name)
    exact = encoders.pooled(encoders.hidden_states(model, TEXTS), "mean")
    with make_group(encoders.save(name, model, tmp_path), 2, formats=WeightFormats(linear=quantization)) as group:
        assert cosines(in_steps(group, TEXTS), exact).min() >= least


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("name", encoders.CONFIGS)
def test_a_text_has_the_same_bits_in_any_company(name: str, tp: int, isa: str, tmp_path: Path) -> None:
    with make_group(encoders.save(name, encoders.random_encoder(name), tmp_path), tp, isa=isa, threads=2) as group:
        alone = [embedded(group, [text], step)[0] for step, text in enumerate(TEXTS)]
        assert len(set(alone)) == len(TEXTS)
        assert embedded(group, TEXTS[:4], 10) + embedded(group, TEXTS[4:], 11) == alone
        assert embedded(group, TEXTS[::-1][:3], 12) == alone[::-1][:3]


@pytest.mark.parametrize("tp", [1, 2, 3])
@pytest.mark.parametrize("name", encoders.CLASSIFIERS)
def test_scores_are_those_of_transformers(name: str, tp: int, isa: str, tmp_path: Path) -> None:
    model = encoders.random_classifier(name)
    exact = encoders.logits(model, TEXTS)
    with make_group(encoders.save(name, model, tmp_path), tp, isa=isa) as group:
        np.testing.assert_allclose(sigmoid(in_steps(group, TEXTS)), sigmoid(exact), atol=0.01)


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("name", encoders.CLASSIFIERS)
def test_a_score_has_the_same_bits_in_any_company(name: str, tp: int, tmp_path: Path) -> None:
    with make_group(encoders.save(name, encoders.random_classifier(name), tmp_path), tp, threads=2) as group:
        alone = [embedded(group, [text], step)[0] for step, text in enumerate(TEXTS)]
        assert len(set(alone)) == len(TEXTS)
        assert embedded(group, TEXTS[:4], 10) + embedded(group, TEXTS[4:], 11) == alone


@pytest.mark.spread("backend")
@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("name", encoders.CLASSIFIERS)
def test_logits_are_as_near_as_those_of_transformers_in_bf16(name: str, backend: str, tmp_path: Path) -> None:
    model = encoders.random_classifier(name, 5)
    exact = encoders.logits(model, TEXTS)
    rounded = encoders.logits(encoders.random_classifier(name, 5).bfloat16(), TEXTS)
    with make_group(encoders.save(name, model, tmp_path), 1, backend=backend) as group:
        assert np.linalg.norm(in_steps(group, TEXTS) - exact) <= 1.1 * np.linalg.norm(rounded - exact)


def sigmoid(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    scores: npt.NDArray[np.float64] = 1 / (1 + np.exp(-logits))
    return scores


def test_tokens_of_a_second_text_are_of_another_type(isa: str, tmp_path: Path) -> None:
    model = encoders.random_classifier("bert")
    second = [len(text) // 2 for text in TEXTS[:4]]
    exact = encoders.logits(model, TEXTS[:4], second)
    assert abs(exact - encoders.logits(model, TEXTS[:4])).min() > 0.05
    with make_group(encoders.save("bert", model, tmp_path), 2, isa=isa) as group:
        found = np.stack([np.frombuffer(each, "<f4") for each in embedded(group, TEXTS[:4], second=second)])
        np.testing.assert_allclose(found, exact, atol=0.04)
        alone = [
            embedded(group, [text], 1 + step, [at])
            for step, (text, at) in enumerate(zip(TEXTS[:4], second, strict=True))
        ]
        assert np.array_equal(np.stack([np.frombuffer(each, "<f4") for (each,) in alone]), found)


def write_dense_modules(folder: Path) -> Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]:
    """Write two Dense modules, the first with a bias and tanh. Return what they compute."""
    write_modules(folder, "Transformer", "Pooling", "Dense", "Dense", pooling={"pooling_mode": "mean"})
    rng, parts = np.random.default_rng(5), []
    for index, (outputs, inputs, biased) in enumerate([(100, 72, True), (24, 100, False)], 2):
        kind = "activation.Tanh" if biased else "linear.Identity"
        sizes: dict[str, Any] = {"in_features": inputs, "out_features": outputs, "bias": biased}
        place = write_dense(folder / f"{index}_Dense", **sizes, activation_function=f"torch.nn.modules.{kind}")
        tensors = {"linear.weight": rng.standard_normal((outputs, inputs), np.float32) * inputs**-0.5}
        if biased:
            tensors["linear.bias"] = rng.standard_normal(outputs, np.float32)
        save_file(tensors, place / "model.safetensors")
        parts.append(tensors)
    first, second = parts
    return lambda x: np.tanh(x @ first["linear.weight"].T + first["linear.bias"]) @ second["linear.weight"].T


@pytest.mark.parametrize("tp", [1, 2])
def test_dense_modules_follow_the_pooling(tp: int, isa: str, tmp_path: Path) -> None:
    model = encoders.random_encoder("bert")
    folder = encoders.save("bert", model, tmp_path)
    exact = write_dense_modules(folder)(encoders.pooled(encoders.hidden_states(model, TEXTS), "mean"))
    with make_group(folder, tp, isa=isa) as group:
        assert cosines(in_steps(group, TEXTS), exact).min() >= 0.9999


def test_dense_modules_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    folder = encoders.save("bert", encoders.random_encoder("bert"), tmp_path)
    write_modules(folder, "Transformer", "Pooling", "Dense", pooling={"pooling_mode": "mean"})
    write_dense(folder / "2_Dense", in_features=64)
    with pytest.raises(OperatorError, match=r"2_Dense: in_features is 64, but the module before has 72 features"):
        load_model_config(folder, ModelSettings(pooled=True))
