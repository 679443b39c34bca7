"""Gemma 4: layers that differ from each other, in a folder and in a GGUF file."""

import json
from pathlib import Path

import pytest
from numaserve.workers.interface.capacity import Capacity
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.layers.mixers.attention import Attention
from numaserve.workers.models.load import load_model_config, open_model
from numaserve.workers.program.caches import CacheIndex
from numaserve.workers.program.cost import StepWork
from numaserve.workers.program.recording.builder import ProgramBuilder
from numaserve.workers.program.setup import ProgramSetup, Ranks
from numaserve.workers.weights.checkpoint import check_checkpoint
from safetensors.torch import load_file, save_file

from tests.support import checkpoints


def attention_of(path: Path) -> list[Attention]:
    found = [block.attention for block in load_model_config(path).decoder.blocks]
    assert all(isinstance(each, Attention) for each in found)
    return [each for each in found if isinstance(each, Attention)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return checkpoints.save(checkpoints.random_model("gemma4-nested"), tmp_path / "folder")


def test_the_last_layers_read_the_cache_of_the_last_layer_of_their_kind_that_has_one(folder: Path) -> None:
    config = load_model_config(folder)
    (part,) = config.partition([1]).ranks
    caches = config.decoder.layer_caches(part)
    sliding, full = (0, 1)
    assert caches.places == tuple(
        CacheIndex(*each)
        for each in ((sliding, 0), (full, 0), (sliding, 1), (sliding, 1), (full, 0), (sliding, 1), (full, 0))
    )
    assert [(kind.heads.dim, kind.window.tokens, kind.layers) for kind in caches.caches] == [(24, 16, 2), (40, 0, 1)]
    of_layer = 2 * 2 * 32  # bytes of keys and values of a dimension of a page
    assert config.decoder.page_bytes(part, "bf16") == of_layer * (2 * 32 + 64)


def test_prompts_skip_layers_without_keys_but_for_rows_of_logits(folder: Path) -> None:
    config = load_model_config(folder)
    assert config.decoder.narrows_in == 2
    assert config.pooled().decoder.narrows_in is None
    (part,) = config.partition([1]).ranks
    limits = Capacity.of_program(256, 64, max_slots=4, pages_per_slot=8, num_pages=32)
    b = ProgramBuilder(ProgramSetup(config.decoder.shape(part), limits, Ranks((2,))))
    config.decoder.forward(b, part)

    def flops(rows: int) -> float:
        return sum(cost.amount(StepWork([(0, 200)], rows)).flops for cost in b.costs())

    of_row = flops(2) - flops(1)
    assert flops(200) > flops(1) + 198 * of_row * 0.9
    assert of_row * 200 > flops(0)  # most of the work of a token is that of the last four layers and the head


def test_layers_without_keys_project_queries_only(folder: Path) -> None:
    assert [len(each.qkv.parts) for each in attention_of(folder)] == [3, 3, 3, 1, 1, 1, 1]
    assert [block.mlp.intermediate for block in load_model_config(folder).decoder.blocks] == [160] * 3 + [320] * 4
    check_checkpoint(open_model(folder), load_model_config(folder))


def test_layers_whose_values_are_their_keys_project_no_values(tmp_path: Path) -> None:
    found = attention_of(checkpoints.save(checkpoints.random_model("gemma4-unified"), tmp_path))
    assert [(len(each.qkv.parts), each.kv_heads, each.head_dim) for each in found] == [(3, 3, 32)] * 2 + [(2, 1, 48)]


def test_the_towers_are_left_out_with_a_note(folder: Path, tmp_path: Path) -> None:
    assert load_model_config(folder).notes == ()
    (file,) = folder.glob("*.safetensors")
    tensors = {name: each for name, each in load_file(file).items() if "vision" not in name}
    save_file(tensors, file, {"format": "pt"})
    assert load_model_config(folder).notes == ("the checkpoint's vision tower is not loaded: only text is served",)
    unified = checkpoints.save(checkpoints.random_model("gemma4-unified"), tmp_path / "unified")
    assert load_model_config(unified).notes == (
        "the checkpoint's audio tower is not loaded: only text and images are served",
    )


def test_fields_of_layers_may_be_listed_by_layer(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    model = checkpoints.random_model("gemma4-nested")
    model.save_pretrained(other)
    config = other / "config.json"
    fields = json.loads(config.read_text())
    assert load_model_config(other).decoder == load_model_config(folder).decoder
    # As models with more than ten layers are saved.
    text = fields["text_config"]
    text["per_layer_config"] = {f"0{layer}": heads for layer, heads in text["per_layer_config"].items()}
    config.write_text(json.dumps(fields))
    assert load_model_config(other).decoder == load_model_config(folder).decoder


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_kv_shared_layers": 6}, "num_kv_shared_layers=6: no layer before these has keys and values of the same"),
        ({"hidden_size_per_layer_input": 40}, "hidden_size_per_layer_input=40 must be a multiple of 32"),
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention='all' is not supported"),
        ({"attention_k_eq_v": True, "num_global_key_value_heads": 2}, "2 key and value heads must divide"),
        ({"per_layer_config": {"0": {"head_dim": 40}}}, "must state the same heads for each full_attention layer"),
        (
            {"per_layer_config": {"1": {"head_dim": 40}, "4": {"head_dim": 48}, "6": {"head_dim": 40}}},
            "must state the same heads",
        ),
    ],
)
def test_contradictions_are_one_clear_line(changes: dict[str, object], message: str, folder: Path) -> None:
    config = folder / "config.json"
    fields = json.loads(config.read_text())
    fields["text_config"] |= changes
    config.write_text(json.dumps(fields))
    with pytest.raises(OperatorError, match=message) as error:
        load_model_config(folder)
    assert "\n" not in str(error.value)
