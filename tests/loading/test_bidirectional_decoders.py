"""Decoders that config.json makes bidirectional: they are encoders, with the mean of a text."""

import json
from pathlib import Path
from typing import Any

import pytest
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.windows import Window
from numaserve.workers.models.load import load_model_config
from numaserve.workers.models.spec import ModelConfig

from tests.support import encoders
from tests.support.families.table import FAMILIES

NAMES = ("llama", "qwen2", "qwen3")
BIDIRECTIONAL = {"is_causal": False}


def configured(folder: Path, name: str, **changes: Any) -> ModelConfig:
    """The model of a tiny config.json with `changes`, whose architecture has a head."""
    values = encoders.CONFIGS[name]().to_dict()
    values |= {"architectures": [f"{name.capitalize()}ForCausalLM"], "is_causal": True} | changes
    (folder / "config.json").write_text(json.dumps(values))
    return load_model_config(folder)


@pytest.mark.parametrize("changes", [BIDIRECTIONAL, {"use_bidirectional_attention": True}])
@pytest.mark.parametrize("name", NAMES)
def test_either_field_makes_an_encoder(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    config = configured(tmp_path, name, **changes)
    assert config.bidirectional
    assert (config.decoder.head, config.decoder.pooling) == (None, "mean")


@pytest.mark.parametrize("name", NAMES)
def test_a_decoder_is_causal_otherwise(name: str, tmp_path: Path) -> None:
    config = configured(tmp_path, name, use_bidirectional_attention=None)
    assert not config.bidirectional
    assert config.decoder.head is not None


def spans(config: ModelConfig) -> list[Window]:
    return [block.attention.cache.span for block in config.decoder.blocks]


def test_windows_are_on_either_side(tmp_path: Path) -> None:
    found = spans(configured(tmp_path, "qwen2", **BIDIRECTIONAL))
    assert found == [Window(bidirectional=True), *[Window(20, bidirectional=True)] * 2]


# Half of a window is on either side. It hides tokens of a text that the whole window covers.
@pytest.mark.parametrize(("window", "side"), [(40, 20), (41, 20), (2, 1), (200, 100)])
def test_windows_of_embedding_gemma_are_halved(window: int, side: int, tmp_path: Path) -> None:
    gemma = {"architectures": ["Gemma3TextModel"], "sliding_window": window}
    config = configured(tmp_path, "embedding-gemma", **gemma)
    assert spans(config) == [*[Window(side, bidirectional=True)] * 2, Window(bidirectional=True)]
    assert (config.decoder.head, config.decoder.pooling) == (None, "mean")
    causal = configured(tmp_path, "embedding-gemma", use_bidirectional_attention=False, **gemma)
    assert spans(causal) == [*[Window(window if window < encoders.POSITIONS else 0)] * 2, Window()]


@pytest.mark.parametrize("architecture", ["Qwen3Model", "Qwen3ForCausalLM"])
def test_an_encoder_without_a_head_needs_no_task(architecture: str, tmp_path: Path) -> None:
    config = configured(tmp_path, "qwen3", architectures=[architecture], **BIDIRECTIONAL)
    assert config.bidirectional
    with pytest.raises(OperatorError, match="'Qwen3Model' is not supported"):
        configured(tmp_path, "qwen3", architectures=["Qwen3Model"])


@pytest.mark.parametrize(("pooling", "expected"), [("avg", "mean"), ("cls", "cls"), ("last", "last"), (None, "mean")])
def test_bidirectional_llama_names_its_pooling(pooling: str | None, expected: str, tmp_path: Path) -> None:
    config = configured(tmp_path, "llama", architectures=["LlamaBidirectionalModel"], pooling=pooling)
    assert config.bidirectional
    assert config.decoder.pooling == expected


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("llama", {"architectures": ["LlamaBidirectionalModel"], "pooling": "weighted_avg"}, "pooling='weighted_avg'"),
        ("embedding-gemma", {"architectures": ["Gemma3TextModel"], "sliding_window": 1}, "sliding_window must be"),
        ("embedding-gemma", {"architectures": ["Gemma3TextModel"], **BIDIRECTIONAL}, "is_causal=False"),
        ("qwen3", {"is_causal": "no"}, "is_causal must be true or false"),
        ("qwen3", {"use_bidirectional_attention": "all"}, "use_bidirectional_attention must be true or false"),
    ],
)
def test_other_values_are_refused(name: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=message):
        configured(tmp_path, name, **changes)


def test_families_that_cannot_be_bidirectional_refuse_it(tmp_path: Path) -> None:
    values = FAMILIES["mistral"].config().to_dict() | {"architectures": ["MistralForCausalLM"]}
    for change in (BIDIRECTIONAL, {"use_bidirectional_attention": True}):
        (tmp_path / "config.json").write_text(json.dumps(values | change))
        with pytest.raises(OperatorError, match=f"{next(iter(change))}=.* is not supported"):
            load_model_config(tmp_path)
