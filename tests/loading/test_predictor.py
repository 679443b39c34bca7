"""A layer that predicts the token after the next, beside one that transformers' layers are put together to."""

import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
import transformers as hf
from numaserve.kernels import Team
from numaserve.workers.interface.capacity import Capacity
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.protocol import KEPT_HIDDEN_STATES, SamplingParams, SlotInit
from numaserve.workers.interface.settings import ModelSettings
from numaserve.workers.layers.parameters import MatrixParameter
from numaserve.workers.layers.predictor import HIDDEN_STATES, Predictor
from numaserve.workers.models.load import load_model_config, open_model
from numaserve.workers.program.native import make_program, native_rows
from numaserve.workers.program.outside import OutsideRows
from numaserve.workers.program.recording.builder import ProgramBuilder
from numaserve.workers.program.reference.numbers import DECLARED, Numbers
from numaserve.workers.program.reference.program import ReferenceProgram
from numaserve.workers.program.setup import ProgramSetup, Ranks
from numaserve.workers.program.slots import slot_settings
from numaserve.workers.weights.checkpoint import can_predict
from safetensors.torch import load_file, save_file

from tests.support import checkpoints
from tests.support.loaded import Loaded, load_part
from tests.support.predicting import PREDICTOR, as_layers, is_qwen, save_predicting
from tests.support.same_bits import save_tiny_model

FAMILIES = ("deepseek_v3", "glm4_moe", "glm4_moe_lite", "qwen3_5", "qwen3_5_moe", "qwen3_next")
# The kinds of layers, for those that list them.
KINDS = {"glm4_moe_lite": {"mlp_layer_types": ["dense", "sparse", "sparse"]}}
HYBRID = {"layer_types": ["linear_attention", "full_attention", "full_attention"]}
TOKENS = np.random.default_rng(0).integers(3, checkpoints.VOCAB, 70)
LIMITS = Capacity.of_program(max_step_tokens=96, max_logit_rows=96, max_slots=1, pages_per_slot=4, num_pages=4)
WITH = ModelSettings(mtp=True)
EXACT = Numbers(torch.float64, rounded=False)

Floats = npt.NDArray[np.floating]


def expected(folder: Path, name: str) -> tuple[Floats, Floats]:
    """What the model makes of each of `TOKENS`, and the log-probability that the layer gives the next one."""
    # The layer is the third of a model, whose embeddings are what it reads in place of tokens'.
    tensors = as_layers(load_file(folder / "model.safetensors"))
    (layered := folder / "layered").mkdir()
    shutil.copy(folder / "config.json", layered)
    save_file(tensors, layered / "model.safetensors", {"format": "pt"})
    layers = {"num_hidden_layers": 3, **KINDS.get(name, HYBRID if is_qwen(name) else {})}
    whole = hf.AutoModelForCausalLM.from_pretrained(layered, dtype=torch.float32, **layers)
    own = {key.removeprefix(PREDICTOR): tensor.float() for key, tensor in tensors.items() if key.startswith(PREDICTOR)}
    model, ids = whole.model, torch.from_numpy(TOKENS)[None]
    layer = model.layers[2]
    with torch.no_grad():
        model.layers = model.layers[:2]
        made = model(ids, use_cache=False).last_hidden_state
        shifted = torch.cat([torch.zeros_like(made[:, :1]), made[:, :-1]], 1)
        token = model.embed_tokens(ids)
        token[:, 0] = 0.0
        more, eps = 1.0 if is_qwen(name) else 0.0, model.config.rms_norm_eps
        beside = [_normed(token, own["enorm.weight"] + more, eps), _normed(shifted, own["hnorm.weight"] + more, eps)]
        model.layers = torch.nn.ModuleList([layer])
        if is_qwen(name):
            model.config.layer_types = ["full_attention"]
        model.norm.weight.copy_(own["shared_head.norm.weight"])
        out = model(inputs_embeds=torch.cat(beside, -1) @ own["eh_proj.weight"].T, use_cache=False).last_hidden_state
        scores = torch.log_softmax(whole.lm_head(out), -1)[0, :-1]
    return made[0].numpy(), scores.gather(1, ids[0, 1:, None])[:, 0].numpy()


def _normed(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def predictor_of(loaded: Loaded) -> Predictor:
    found = loaded.config.decoder.predictor
    assert found is not None
    return found


def built(loaded: Loaded) -> ProgramBuilder:
    predictor = predictor_of(loaded)
    b = ProgramBuilder(ProgramSetup(predictor.shape(loaded.part), LIMITS, Ranks((1,)), WITH))
    predictor.forward(b, loaded.part)
    return b


def found_by(program: object, outside: OutsideRows, made: Floats) -> Floats:
    """The log-probabilities that a program gives the next tokens."""
    program.init_slot(0, slot_settings(SlotInit(SamplingParams())))  # type: ignore[attr-defined]
    program.append_pages(0, [2, 0, 1])  # type: ignore[attr-defined]
    count = len(TOKENS)
    given = outside.given(HIDDEN_STATES)
    given[0] = 0.0
    given[1:count] = made[:-1]
    tokens = np.array([checkpoints.VOCAB, *TOKENS[1:]], np.int32)
    plan = np.array([[0, 0, count, 0, 0, count - 1]], np.int32)
    rows, *_ = program.step(plan, tokens, TOKENS[1:].astype(np.int32))  # type: ignore[attr-defined]
    return np.array([target[1] for _, _, target, _ in rows])


@pytest.mark.parametrize("name", FAMILIES)
def test_it_computes_what_the_paper_says(name: str, tmp_path: Path, team: Team) -> None:
    made, wanted = expected(save_predicting(name, tmp_path), name)
    loaded = load_part(tmp_path, team, [1], settings=WITH, positions=128, config=load_model_config(tmp_path, WITH))
    b = built(loaded)
    exact, declared = (
        found_by(program, program.outside, made)
        for program in (ReferenceProgram(b.setup, b.operations, loaded.native, each) for each in (EXACT, DECLARED))
    )
    assert exact == pytest.approx(wanted, abs=1e-4)
    fused, unfused = (
        found_by(program, native_rows(program, each), made)
        for each in (b.fused(), b.operations)
        for program in [make_program(b.setup, each, team, weights=loaded.native)]
    )
    assert fused.tolist() == unfused.tolist()
    size = np.linalg.norm(declared - wanted)
    assert 0 < size < 0.2 * np.linalg.norm(wanted)
    assert np.linalg.norm(fused - wanted) < 2 * size


@pytest.mark.parametrize("name", FAMILIES)
def test_it_is_left_out_unless_it_is_asked_for(name: str, tmp_path: Path) -> None:
    save_predicting(name, tmp_path)
    with_it, without = load_model_config(tmp_path, WITH), load_model_config(tmp_path)
    assert without.decoder.predictor is None
    (note,) = set(without.notes) - set(with_it.notes)
    assert note == "the checkpoint's multi-token prediction (MTP) layers are skipped: 1"
    parts = [each.partition([1]).ranks[0] for each in (with_it, without)]
    more, less = (part.weight_bytes() for part in parts)
    assert more - less > 2 * 96 * 2 * 96
    pages = [each.decoder.page_bytes(part, "bf16") for each, part in zip((with_it, without), parts, strict=True)]
    hidden_states = 2 * with_it.hidden_size
    paged = sum(cache.is_paged for cache in without.decoder.keeps)
    assert (pages[0] - hidden_states) * paged == pages[1] * (paged + 1)
    slots = [each.decoder.slot_bytes(part) for each, part in zip((with_it, without), parts, strict=True)]
    assert slots[0] - slots[1] == KEPT_HIDDEN_STATES * hidden_states
    assert can_predict(open_model(tmp_path), weights=True)


def test_a_checkpoint_without_one_says_so(tmp_path: Path) -> None:
    save_tiny_model("llama", tmp_path / "plain")
    assert not can_predict(open_model(tmp_path / "plain"), weights=True)
    with pytest.raises(OperatorError, match="no multi-token prediction"):
        load_model_config(tmp_path / "plain", WITH)
    stripped = save_predicting("deepseek_v3", tmp_path / "stripped")
    kept = {key: each for key, each in load_file(stripped / "model.safetensors").items() if PREDICTOR not in key}
    save_file(kept, stripped / "model.safetensors", {"format": "pt"})
    assert not can_predict(open_model(stripped), weights=True)
    assert can_predict(open_model(stripped), weights=False)
    other = save_predicting("deepseek_v3", tmp_path / "other", lambda each: each.pop(f"{PREDICTOR}mlp.gate.weight"))
    assert not can_predict(open_model(other), weights=True)


def test_a_file_in_which_it_was_kept_has_the_same_layer(tmp_path: Path, team: Team) -> None:
    folder = save_predicting("glm4_moe", tmp_path / "folder")
    own = {key.removeprefix(PREDICTOR): each for key, each in load_file(folder / "model.safetensors").items()}
    whole = hf.AutoModelForCausalLM.from_pretrained(folder, num_hidden_layers=3, dtype=torch.float32)
    names = ("eh_proj", "enorm", "hnorm", "shared_head.norm")
    more = {f"{PREDICTOR}{name}.weight": own[f"{name}.weight"] for name in names}
    file = checkpoints.save_gguf(whole, tmp_path / "model.gguf", "BF16", more=more)
    assert can_predict(open_model(file), weights=True)
    of_file, of_folder = (
        load_part(path, team, [1], config=load_model_config(path, WITH), settings=WITH) for path in (file, folder)
    )
    for one, other in zip(predictor_of(of_file).parameters(), predictor_of(of_folder).parameters(), strict=True):
        if isinstance(one, MatrixParameter):
            assert isinstance(other, MatrixParameter)
            pairs = zip(of_file.matrices(one), of_folder.matrices(other), strict=True)
            assert all((mine.to_numpy() == theirs.to_numpy()).all() for mine, theirs in pairs)
        else:
            assert (of_file.vector(one).to_numpy() == of_folder.vector(other).to_numpy()).all()
