"""GGUF files of encoders: what their metadata say, compared with the folders that they are made from."""

from pathlib import Path

import gguf
import pytest
from gguf import PoolingType
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.settings import ModelSettings
from numaserve.workers.models.load import load_model_config
from numaserve.workers.models.spec import ModelConfig

from tests.support import checkpoints, encoders, gguf_encoders

POOLED = ModelSettings(pooled=True)


def saved(name: str, folder: Path, pooling: PoolingType | None = None) -> Path:
    return gguf_encoders.save_gguf(name, encoders.random_encoder(name), folder, pooling=pooling)


def described(config: ModelConfig) -> object:
    """The computation of a model, without its weights."""
    decoder = config.decoder
    attention = [block.attention for block in decoder.blocks]
    caches = [(each.cache, each.rotation, each.scale) for each in attention]
    mlps = [(type(block.mlp), block.mlp.activation, block.mlp.intermediate) for block in decoder.blocks]
    return config.max_position, config.vocab_size, config.hidden_size, caches, mlps, decoder.pooling, decoder.head


@pytest.mark.parametrize("name", gguf_encoders.ARCHITECTURES)
def test_a_file_describes_the_model_of_its_folder(name: str, tmp_path: Path) -> None:
    path = saved(name, tmp_path)
    config = load_model_config(path)
    assert config.bidirectional
    assert described(config) == described(load_model_config(tmp_path))


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        (PoolingType.NONE, "mean"),
        (PoolingType.MEAN, "mean"),
        (PoolingType.CLS, "cls"),
        (PoolingType.LAST, "last"),
    ],
)
def test_a_file_states_its_pooling(pooling: PoolingType, expected: str, tmp_path: Path) -> None:
    path = saved("bert", tmp_path, pooling)
    assert load_model_config(path, POOLED).decoder.pooling == expected


def test_a_decoder_has_its_pooling_only_for_embeddings(tmp_path: Path) -> None:
    model = checkpoints.random_model("qwen3")
    path = checkpoints.save_gguf(model, tmp_path / "model.gguf", "BF16", pooling_type=int(PoolingType.MEAN))
    assert load_model_config(path).decoder.head is not None
    assert load_model_config(path, POOLED).decoder.pooling == "mean"


def test_a_reranker_is_refused(tmp_path: Path) -> None:
    path = saved("xlm-roberta", tmp_path, PoolingType.RANK)
    with pytest.raises(OperatorError, match="pooling_type is rank: the encoder is a reranker"):
        load_model_config(path)


def test_an_encoder_with_experts_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH.NOMIC_BERT_MOE])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(OperatorError, match=r"'nomic-bert-moe' is not supported \(similar supported names: nomic-bert"):
        load_model_config(path)
