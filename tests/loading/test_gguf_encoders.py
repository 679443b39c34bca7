"""GGUF files of encoders: what their metadata say, compared with the folders that they are made from."""

from pathlib import Path
from typing import Any

import gguf
import pytest
from gguf import PoolingType
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.settings import ModelSettings
from numaserve.workers.models.load import load_model_config
from numaserve.workers.models.spec import ModelConfig

from tests.support import checkpoints, encoders, gguf_encoders
from tests.support.gguf_files import finish

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
    model, pooling = checkpoints.random_model("qwen3"), {"pooling_type": int(PoolingType.MEAN)}
    path = checkpoints.save_gguf(model, tmp_path / "model.gguf", "BF16", changes=pooling)
    assert load_model_config(path).decoder.head is not None
    assert load_model_config(path, POOLED).decoder.pooling == "mean"


def classifier(name: str, folder: Path, outputs: int = 1, **more: Any) -> Path:
    return gguf_encoders.save_gguf(name, encoders.random_classifier(name, outputs), folder, **more)


@pytest.mark.parametrize("pooling", [None, PoolingType.NONE, PoolingType.RANK])
@pytest.mark.parametrize("name", gguf_encoders.CLASSIFIERS)
def test_a_file_holds_a_classifier(name: str, pooling: PoolingType | None, tmp_path: Path) -> None:
    labels = ["unfit", "fits", "größer"]
    config = load_model_config(classifier(name, tmp_path, 3, pooling=pooling, labels=labels), POOLED)
    original = load_model_config(tmp_path)
    assert (config.labels, config.decoder.pooling) == (tuple(labels), original.decoder.pooling)
    dense, expected = (
        [(each.inputs, each.outputs, each.activation, each.biased, each.norm is None) for each in model.decoder.dense]
        for model in (config, original)
    )
    assert dense == expected


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_a_classifier_states_its_pooling(pooling: str, tmp_path: Path) -> None:
    model = encoders.random_classifier("modernbert")
    model.config.classifier_pooling = pooling
    assert load_model_config(gguf_encoders.save_gguf("modernbert", model, tmp_path)).decoder.pooling == pooling


def test_labels_without_names_are_numbered(tmp_path: Path) -> None:
    assert load_model_config(classifier("xlm-roberta", tmp_path, 3)).labels == ("LABEL_0", "LABEL_1", "LABEL_2")


def test_a_file_that_states_another_pooling_is_for_embeddings(tmp_path: Path) -> None:
    config = load_model_config(classifier("xlm-roberta", tmp_path, pooling=PoolingType.MEAN))
    assert (config.labels, config.decoder.dense, config.decoder.pooling) == ((), (), "mean")


def test_the_head_of_a_masked_model_does_not_classify(tmp_path: Path) -> None:
    path = gguf_encoders.save_gguf("modernbert", encoders.random_encoder("modernbert", masked=True), tmp_path)
    assert "cls.weight" in {tensor.name for tensor in gguf.GGUFReader(path).tensors}
    config = load_model_config(path)
    assert (config.labels, config.decoder.dense) == ((), ())


@pytest.mark.parametrize(
    ("name", "more", "message"),
    [
        ("bert", {}, r"cls.output.weight of a classification head, but not cls.weight; .* Serve the original"),
        ("xlm-roberta", {"labels": ["a", "b"]}, r"output_labels has 2 labels, but cls.output.weight has 1 rows"),
        ("nomic-bert", {"pooling": PoolingType.RANK}, "pooling_type is rank, but the file has no classification head"),
    ],
)
def test_classifiers_that_are_not_whole_are_refused(
    name: str, more: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = classifier(name, tmp_path, **more)
    with pytest.raises(OperatorError, match=message):
        load_model_config(path)


def judge(folder: Path, *, tied: bool, kind: str = "BF16") -> Path:
    """A file of a Qwen3 that judges, with a head for the tokens yes and no, which are 7 and 5."""
    model = checkpoints.random_model("qwen3")
    whole = checkpoints.save_gguf(model, folder / "whole.gguf", kind)
    writer = gguf.GGUFWriter(folder / "model.gguf", "qwen3")
    reader = gguf.GGUFReader(whole)
    for key, field in reader.fields.items():
        if not key.startswith(("GGUF.", "general.architecture")):
            writer.add_key_value(key, field.contents(), field.types[0])
    words = [f"word{index}" for index in range(checkpoints.VOCAB)]
    words[5], words[7] = "no", "yes"
    writer.add_token_list(words)
    writer.add_pooling_type(PoolingType.RANK)
    writer.add_classifier_output_labels(["yes", "no"])
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        if tensor.name == "token_embd.weight":
            # In an untied head they are other rows.
            head = tensor.data[[7, 5] if tied else [11, 12]]
            writer.add_tensor("cls.output.weight", head, raw_dtype=tensor.tensor_type)
    finish(writer)
    return folder / "model.gguf"


@pytest.mark.parametrize("kind", ["BF16", "F16", "Q8_0"])
def test_a_decoder_that_judges_has_the_head_of_its_embeddings(kind: str, tmp_path: Path) -> None:
    head = load_model_config(judge(tmp_path, tied=True, kind=kind)).decoder.head
    assert head is not None
    assert head.tied


def test_a_decoder_that_judges_without_its_head_is_refused(tmp_path: Path) -> None:
    message = r"head for the answers of a reranker alone \(cls.output.weight\).* --task score"
    with pytest.raises(OperatorError, match=message):
        load_model_config(judge(tmp_path, tied=False))


def test_an_encoder_with_experts_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH.NOMIC_BERT_MOE])
    finish(writer)
    with pytest.raises(OperatorError, match=r"'nomic-bert-moe' is not supported \(similar supported names: nomic-bert"):
        load_model_config(path)
