"""Buffers that older libraries saved with the weights: each family ignores those that transformers ignores, unread."""

import copy
import functools
import json
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers as hf
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.settings import ModelSettings
from numaserve.workers.layers.embedding import HEAD
from numaserve.workers.layers.names import TensorNames
from numaserve.workers.models.load import load_model_config, open_model
from numaserve.workers.models.registry import families
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.weights.checkpoint import check_checkpoint
from numaserve.workers.weights.source import RawTensor
from numaserve.workers.weights.tensors import check_tensors, expected_tensors
from safetensors.torch import load_file, save_file

from tests.support import encoders, gemma4, grid_vision, llama4_vision, pixtral, vision
from tests.support.families.table import FAMILIES

# By the list of names: to look a class up imports its module, in each process that collects tests.
ARCHITECTURES = [name for family in families().values() for name in family.architectures if name in hf.__all__]
_CASES = {
    **{name: row.config for name, row in FAMILIES.items()},
    **vision.CASES,
    **grid_vision.CASES,
    **pixtral.CASES,
    **llama4_vision.CASES,
}
_DECODERS = ("ForCausalLM", "ForConditionalGeneration")
POOLED = ModelSettings(pooled=True)


class Header:
    """A checkpoint that has these tensors, of which only `readable` ones may be looked at."""

    def __init__(self, readable: dict[str, tuple[int, ...]], more: Collection[str] = ()) -> None:
        self._readable, self._names = readable, {*readable, *more}

    def names(self) -> Collection[str]:
        return self._names

    def tensor(self, name: str) -> RawTensor:
        return RawTensor(name, np.zeros(0, np.uint8), "bf16", self._readable[name])

    part = tensor

    def release(self, tensor: RawTensor) -> None:
        pass


def small_config(kind: type[hf.PreTrainedConfig]) -> hf.PreTrainedConfig:
    """A configuration of a class of transformers, a small one if there is one in the tables of cases."""
    if kind in (hf.Gemma4AssistantConfig, hf.Gemma4UnifiedAssistantConfig):
        return gemma4.assistant_config(FAMILIES["gemma4-keys-only"].config())
    found = _small_configs().get(kind)
    return copy.deepcopy(found) if found is not None else kind()


@functools.cache
def _small_configs() -> dict[type[hf.PreTrainedConfig], hf.PreTrainedConfig]:
    """Return the first configuration of each class in the tables of cases."""
    made = [case() for case in (*_CASES.values(), *encoders.CONFIGS.values())]
    made += [config.get_text_config() for config in made]
    return {type(config): config for config in reversed(made)}


def ignored_by_transformers(model: hf.PreTrainedModel) -> set[str]:
    """The buffers that transformers ignores in a checkpoint, where it has them and where older versions had them."""
    buffers = {name for name, _ in model.named_non_persistent_buffers()}
    older = {name.replace("rotary_emb.", f"layers.{layer}.self_attn.rotary_emb.") for name in buffers for layer in "01"}
    info = SimpleNamespace(missing_keys=set(), unexpected_keys=buffers | older)
    model._adjust_missing_and_unexpected_keys(info)
    return (buffers | older) - info.unexpected_keys


def examples(model: hf.PreTrainedModel, ignored: Collection[str]) -> Iterator[tuple[str, int | None]]:
    """A name for each pattern of `_keys_to_ignore_on_load_unexpected` that has none among the `ignored`, and the number
    of layers of the model that it is meant for. A pattern that begins a name is for a whole module."""
    for pattern in model._keys_to_ignore_on_load_unexpected:
        if not any(re.search(pattern, name) for name in ignored):
            name = re.sub(r"[\^\\]|\.?\*?$", "", pattern) + ".weight"
            name = re.sub(r"^layers\.", "model.layers.", name)
            assert re.search(pattern, name)
            layers = re.match(r"model\\\.layers\\\.(\d+)", pattern)
            yield name, int(layers[1]) if layers else None


def configured(folder: Path, model: hf.PreTrainedModel, layers: int | None = None) -> ModelConfig:
    architecture = type(model).__name__
    values = json.loads(model.config.to_json_string(use_diff=False)) | {"architectures": [architecture]}
    if layers is not None:
        # transformers drops the layers for multi-token prediction, which published files count.
        values |= {"num_hidden_layers": layers, "num_nextn_predict_layers": 1, "mlp_layer_types": None}
    (folder / "config.json").write_text(json.dumps(values))
    for each in (vision, grid_vision):
        if type(model.config) in each.CONFIGS:
            each.save_processor(model.config, folder)
    return load_model_config(folder, ModelSettings(pooled=not architecture.endswith(_DECODERS)))


def check(config: ModelConfig, model: hf.PreTrainedModel, more: Collection[str]) -> None:
    """Check a checkpoint with the tensors of the configuration and `more`, without those that it may lack."""
    plain, parts = expected_tensors(config, TensorNames(config.prefixes[0], HEAD, config.aliases))
    assert not parts
    may_lack = model._keys_to_ignore_on_load_missing
    check_tensors(Header({k: v for k, v in plain.items() if not any(re.search(p, k) for p in may_lack)}, more), config)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_checkpoint_may_have_the_tensors_that_transformers_ignores(architecture: str, tmp_path: Path) -> None:
    made = getattr(hf, architecture)
    with torch.device("meta"):
        model = made(small_config(made.config_class))
    config, ignored = configured(tmp_path, model), ignored_by_transformers(model)
    check(config, model, ignored)
    for name, layers in examples(model, ignored):
        check(configured(tmp_path, model, layers), model, [name])
    with pytest.raises(OperatorError, match=r"holds other\.embeddings\.ids, which"):
        check(config, model, ["other.embeddings.ids"])


def test_buffers_of_any_shape_and_type_are_never_read(tmp_path: Path) -> None:
    """Bytes of another type and shape than an index has, and values that are none."""
    folder = encoders.save("bert", encoders.random_encoder("bert"), tmp_path)
    lies = {
        "embeddings.position_ids": torch.tensor([[-1, 2**62], [0, 0]]),
        "bert.embeddings.position_ids": torch.full((3, 1, 2), float("nan")),
        "embeddings.token_type_ids": torch.tensor(True),
    }
    save_file(load_file(folder / "model.safetensors") | lies, folder / "model.safetensors")
    check_checkpoint(open_model(folder), load_model_config(folder, POOLED))


@pytest.mark.parametrize(
    ("name", "stray"),
    [
        ("bert", "embeddings.position_ids.weight"),
        ("bert", "embeddings.my_position_ids"),
        ("bert", "myembeddings.position_ids"),
        ("bert", "encoder.layer.0.rotary_emb.inv_freq"),
        ("eurobert", "embeddings.position_ids"),
        ("eurobert", "layers.0.self_attn.inv_freq"),
    ],
)
def test_a_name_that_is_like_that_of_a_buffer_is_refused(name: str, stray: str, tmp_path: Path) -> None:
    folder = encoders.save(name, encoders.random_encoder(name), tmp_path)
    save_file(load_file(folder / "model.safetensors") | {stray: torch.zeros(3)}, folder / "model.safetensors")
    with pytest.raises(OperatorError, match=rf"holds {re.escape(stray)}, which"):
        check_checkpoint(open_model(folder), load_model_config(folder, POOLED))
