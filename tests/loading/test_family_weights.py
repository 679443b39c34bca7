"""The weights of every family: from a folder, from a GGUF file and in GGUF's blocks, ranks compute what transformers
computes."""

from pathlib import Path

import gguf
import pytest
import torch
import transformers as hf
from numaserve.kernels import Team
from numaserve.workers.layers.parameters import MatrixParameter
from numaserve.workers.layers.stored import GGUF_BLOCKS
from numaserve.workers.models.registry import families
from safetensors.torch import load_file
from test_loader import assert_same_logits
from test_quantized_loading import assert_same_logits as assert_same_quantized

from tests.support import checkpoints, encoders, grid_vision, llama4_vision, pixtral, vision
from tests.support.families.table import FAMILIES, TEXT
from tests.support.k_quants import fitting
from tests.support.loaded import Loaded
from tests.support.published import LAYOUTS
from tests.support.published_checkpoints import save_but_for

WHOLE = 256  # columns, of tensors that are no linear modules: whole blocks of every kind
HALVES = {"k_b_proj": "qk_nope_head_dim", "v_b_proj": "kv_lora_rank"}  # of `kv_b_proj` in a file, with their widths
ROUTERS = {"gate", "router", "shared_expert_gate"}  # in bf16, whatever the others are


def test_every_family_has_a_row() -> None:
    configs = [row.config() for row in FAMILIES.values()]
    configs += [
        case()
        for cases in (vision.CASES, grid_vision.CASES, pixtral.CASES, llama4_vision.CASES)
        for case in cases.values()
    ]
    # transformers writes a name with an underscore, checkpoints are published without.
    rows = {checkpoints.architecture(each).replace("Kimi_", "Kimi") for each in configs}
    rows |= {*encoders.ARCHITECTURES.values(), "Gemma4AssistantForCausalLM"}
    rows |= {"Mistral4ForCausalLM"}  # nested in the row of another architecture
    assert [family.name for family in families().values() if rows.isdisjoint(family.architectures)] == []


@pytest.mark.parametrize("tp", [1, 2, 3])
@pytest.mark.parametrize("name", TEXT)
def test_a_folder_gives_what_transformers_computes(name: str, tp: int, tmp_path: Path, team: Team) -> None:
    model = checkpoints.random_model(name)
    folder = checkpoints.save(model, tmp_path, sharded=tp == 2)
    assert (folder / "model.safetensors.index.json").exists() == (tp == 2)
    saved = {each for file in folder.glob("*.safetensors") for each in load_file(file)}
    assert {*TEXT[name].tensors} <= saved
    assert_same_logits(folder, model, tp, team)


@pytest.mark.parametrize("tp", [1, 2, 3])
@pytest.mark.parametrize("name", [name for name, row in TEXT.items() if row.gguf is not None])
def test_a_gguf_file_gives_what_its_family_computes(name: str, tp: int, tmp_path: Path, team: Team) -> None:
    model = checkpoints.build(TEXT[name].in_gguf())
    assert_same_logits(checkpoints.save_gguf(model, tmp_path / "model.gguf", "F32"), model, tp, team)


@pytest.mark.spread("kind")
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_K"])
@pytest.mark.parametrize("name", [name for name, row in TEXT.items() if None not in (row.blocks, row.gguf)])
def test_a_gguf_file_stays_quantized(name: str, kind: str, tmp_path: Path, team: Team) -> None:
    row = TEXT[name]
    model = checkpoints.build(row.in_blocks())
    path = checkpoints.save_gguf(model, tmp_path / "model.gguf", kind, expanded=False)
    expand(model, ("embed_tokens", *row.expands))
    # Scales and minima of Q4_K are products of two numbers, of which 11 bits are kept.
    for loaded in assert_same_quantized(path, model, 2, team, atol=0.3 if kind == "Q4_K" else 5e-4):
        for parts, formats in formats_of(loaded).items():
            expected = {"bf16"} if parts & {*ROUTERS, *row.expands} else natives(model, kind, parts)
            # The rows of `in_proj` that make steps are a matrix of their own, and keys of latents are turned.
            others = {"bf16"} if "in_proj" in parts else {"int8_group"} if "kv_b_proj" in parts else set()
            assert expected <= formats | others, parts
            assert formats <= expected | others, parts


@pytest.mark.spread("layout")
@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("layout", ["gptq", "awq", "w4a16", "w8a8", "fp8 blocks"])
@pytest.mark.parametrize("name", [name for name, row in TEXT.items() if row.published is not None])
def test_a_published_checkpoint_stays_quantized(name: str, layout: str, tp: int, tmp_path: Path, team: Team) -> None:
    kept = TEXT[name].published or ()
    model = checkpoints.build(TEXT[name].in_blocks())
    path = save_but_for(model, tmp_path, layout, kept)
    expand(model, ())
    native, of_kept = LAYOUTS[layout].native, ROUTERS | {each.rpartition(".")[2] for each in kept}
    for loaded in assert_same_quantized(path, model, tp, team):
        for parts, formats in formats_of(loaded).items():
            others = {"bf16"} if "in_proj" in parts else set()
            assert formats - others == ({"bf16"} if parts & of_kept else {native}) - others, parts


def expand(model: hf.PreTrainedModel, modules: tuple[str, ...]) -> None:
    """Round what is expanded to bf16 as it is loaded: modules, and the rows that make steps of state spaces."""
    for name, module in model.named_modules():
        if name.rpartition(".")[2] in modules:
            module.weight = torch.nn.Parameter(module.weight.data.bfloat16().float())
        if hasattr(module, "dt_bias") and hasattr(module, "in_proj"):
            steps = module.in_proj.weight.data[-module.dt_bias.numel() :]
            steps.copy_(steps.bfloat16())


def natives(model: hf.PreTrainedModel, kind: str, parts: frozenset[str]) -> set[str]:
    """Return the formats of served matrices by names. A file has another type for rows that are no whole blocks."""
    linears = {name: each for name, each in model.named_modules() if isinstance(each, torch.nn.Linear)}
    widths = {each.in_features for name, each in linears.items() if name.rpartition(".")[2] in parts}
    widths |= {getattr(model.config, HALVES[part]) for part in parts & HALVES.keys()}
    qtypes = {fitting(gguf.GGMLQuantizationType[kind], width) for width in widths or {WHOLE}}
    return {GGUF_BLOCKS[qtype.name.lower()].native for qtype in qtypes}


def formats_of(loaded: Loaded) -> dict[frozenset[str], set[str]]:
    """Return the formats of matrices of blocks by the last words of their sources' names."""
    found: dict[frozenset[str], set[str]] = {}
    for block in loaded.config.decoder.blocks:
        for parameter in block.parameters():
            if isinstance(parameter, MatrixParameter):
                parts = frozenset(source.name.rpartition(".")[2] for source in parameter.sources)
                found.setdefault(parts, set()).update(each.format for each in loaded.matrices(parameter))
    return found
