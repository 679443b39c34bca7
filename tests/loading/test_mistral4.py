"""Mistral Small 4: its configuration, and the same model in a folder and in a GGUF file."""

from dataclasses import replace
from pathlib import Path

import pytest
import transformers as hf
from numaserve.kernels import Team
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.settings import BF16_WEIGHTS
from numaserve.workers.layers.experts import Experts
from numaserve.workers.layers.mixers.latent_attention import LatentAttention
from numaserve.workers.models.load import load_model_config
from published_decoders import MISTRAL4
from safetensors.torch import load_file
from test_gguf_deepseek import as_folder, packed
from test_loader import edit_tensors
from test_model_config import write
from test_quantized_loading import load

from tests.support import checkpoints
from tests.support.families.table import FAMILIES
from tests.support.loaded import load_part
from tests.support.models import the_only


def test_without_a_beta_queries_are_not_scaled(tmp_path: Path) -> None:
    rope = MISTRAL4["rope_parameters"] | {"llama_4_scaling_beta": 0.0}
    config = load_model_config(write(tmp_path, **MISTRAL4 | {"rope_parameters": rope}))
    assert the_only(config, LatentAttention).rope.query_scale is None


def text_model() -> hf.PreTrainedModel:
    nested = FAMILIES["mistral4"].config().text_config
    return checkpoints.randomise(hf.Mistral4ForCausalLM(nested).eval())


def test_a_file_and_a_folder_are_packed_to_the_same_bytes(tmp_path: Path, team: Team) -> None:
    model = text_model()
    folder = checkpoints.save(model, tmp_path / "folder")
    file = checkpoints.save_gguf(model, tmp_path / "model.gguf", "BF16")
    of_folder, of_file = load_model_config(folder), load_model_config(file)
    assert of_file.family == of_folder.family == "mistral4"
    names = the_only(of_folder, Experts).names
    blocks = tuple(
        replace(each, mlp=replace(each.mlp, names=names)) for each in as_folder(of_file, of_folder).decoder.blocks
    )
    assert blocks == of_folder.decoder.blocks
    for tp in (1, 2):
        for ours, theirs in zip(load(file, tp, team, BF16_WEIGHTS), load(folder, tp, team, BF16_WEIGHTS), strict=True):
            assert packed(ours) == packed(theirs)


def test_the_experts_of_a_layer_lie_in_one_tensor_gate_above_up(tmp_path: Path, team: Team) -> None:
    folder = checkpoints.save(text_model(), tmp_path)
    whole = load_file(folder / "model.safetensors")["model.layers.1.mlp.experts.down_proj"].float().numpy()
    loaded = load_part(folder, team, [1])
    experts = loaded.config.decoder.blocks[1].mlp
    assert isinstance(experts, Experts)
    down = loaded.matrices(experts.down)
    assert all((matrix.to_numpy() == each).all() for matrix, each in zip(down, whole, strict=True))
    edit_tensors(folder, lambda t: {name: each[:-1] if ".experts." in name else each for name, each in t.items()})
    with pytest.raises(OperatorError, match="the configuration asks for 12 experts"):
        load_part(folder, team, [1])
