"""The types of a pair's tokens are those of transformers: `model_input_names` decides, or the tokenizer's class."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers as hf
from numaserve.server.service.checks.pair_types import check_pair_types
from numaserve.server.tokenizer import load_tokenizer
from numaserve.server.tokenizer.files.token_types import TYPED_CLASSES
from numaserve.server.tokenizer.types import TokenizationError
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.settings import ModelSettings
from numaserve.workers.models.load import load_model_config
from tokenizers import processors
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES, tokenizer_class_from_name

from tests.support import encoders
from tests.support.gguf_tokenizers import write_wordpiece_gguf
from tests.support.tokenizer_builders import typed_unigram_backend, wordpiece_backend

PAIR = ("The fox", "lazy dogs jump")
UNTYPED = ["input_ids", "attention_mask"]
TYPED = [*UNTYPED, "token_type_ids"]


def write(folder: Path, model_type: str, **config: Any) -> Path:
    """A tokenizer that gives the second text of a pair type 1, with a tokenizer_config.json if there is a `config`."""
    is_bert = "BertTokenizer" in config.get("tokenizer_class", "") or model_type in ("bert", "nomic_bert")
    backend = wordpiece_backend() if is_bert else typed_unigram_backend()
    backend.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"model_type": model_type, "architectures": ["X"]}))
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("model_type", "kind", "names"),
    [
        *((model_type, None, None) for model_type in ("bert", "nomic_bert", "xlm-roberta", "gte")),
        *(("bert", None, names) for names in (UNTYPED, TYPED, [])),
        *(("bert", kind, None) for kind in ("BertTokenizer", "BertTokenizerFast", "PreTrainedTokenizerFast")),
        *(("bert", "PreTrainedTokenizerFast", names) for names in (UNTYPED, TYPED)),
        *(("gte", kind, None) for kind in ("XLMRobertaTokenizerFast", "BertTokenizer", "TokenizersBackend", "Unknown")),
        *(("gte", "BertTokenizer", names) for names in (UNTYPED, TYPED)),
    ],
)
def test_pairs_have_the_types_of_transformers(
    model_type: str, kind: str | None, names: list[str] | None, tmp_path: Path
) -> None:
    config = {"tokenizer_class": kind, "model_input_names": names}
    write(tmp_path, model_type, **{key: value for key, value in config.items() if value is not None})
    tokenizer, oracle = load_tokenizer(tmp_path), hf.AutoTokenizer.from_pretrained(tmp_path)
    parts = [tokenizer.encode(text, add_special_tokens=False) for text in PAIR]
    tokens, second = tokenizer.pair_form().joined(*parts)
    expected = oracle(*PAIR)
    assert tokens == expected["input_ids"]
    types = [int(0 < second <= position) for position in range(len(tokens))]
    assert types == expected.get("token_type_ids", [0] * len(tokens))


def test_the_classes_with_types_are_those_of_transformers() -> None:
    configs = (name.removesuffix("Config") for name in CONFIG_MAPPING_NAMES.values())
    names = {*filter(None, TOKENIZER_MAPPING_NAMES.values()), *(f"{name}Tokenizer" for name in configs)}
    assert {name for name in names if "token_type_ids" in _input_names(name)} == TYPED_CLASSES


def _input_names(name: str) -> list[str]:
    try:
        return list(tokenizer_class_from_name(name).model_input_names)
    except (AttributeError, ImportError):  # there is no such class, or it needs a package
        return []


def test_other_types_than_those_of_two_texts_are_refused(tmp_path: Path) -> None:
    backend = wordpiece_backend()
    pair = "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:0"
    tokens = [("[CLS]", 2), ("[SEP]", 3)]
    backend.post_processor = processors.TemplateProcessing(single="$A", pair=pair, special_tokens=tokens)
    backend.save(str(write(tmp_path, "bert") / "tokenizer.json"))
    with pytest.raises(TokenizationError, match="does not give type 0 to the first text"):
        load_tokenizer(tmp_path).pair_form()


@pytest.mark.parametrize(("types", "typed"), [(1, False), (2, True), (None, True)])
def test_a_gguf_file_with_one_type_gives_pairs_no_types(types: int | None, typed: bool, tmp_path: Path) -> None:
    path = write_wordpiece_gguf(tmp_path / "model.gguf", wordpiece_backend(), types=types)
    assert load_tokenizer(path).pair_form().typed == typed


def checked(name: str, folder: Path, types: int) -> None:
    """Check the classifier `name` with that many types, and the tokenizer in its folder."""
    values = encoders.config_values(name) | {"type_vocab_size": types, "num_labels": 1}
    architecture = values["architectures"][0].replace("Model", "ForSequenceClassification")
    (folder / "config.json").write_text(json.dumps(values | {"architectures": [architecture]}))
    model = load_model_config(folder, ModelSettings(pooled=True))
    check_pair_types(load_tokenizer(folder), model, folder)


@pytest.mark.parametrize("name", ["bert", "xlm-roberta", "gte"])
def test_a_type_that_the_model_lacks_is_refused_at_the_start(name: str, tmp_path: Path) -> None:
    write(tmp_path, "bert", tokenizer_class="BertTokenizer")
    checked(name, tmp_path, 2)
    with pytest.raises(OperatorError, match=r'type_vocab_size is 1.*set "model_input_names" to \["input_ids", "att'):
        checked(name, tmp_path, 1)
    write(tmp_path, "bert", tokenizer_class="BertTokenizer", model_input_names=UNTYPED)
    checked(name, tmp_path, 1)


def test_types_that_a_model_has_and_pairs_lack_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "numaserve")
    checked("bert", write(tmp_path, "bert"), 2)
    assert not caplog.text
    write(tmp_path, "bert", model_input_names=UNTYPED)
    checked("bert", tmp_path, 2)
    assert "both texts of a pair have token type 0, as in transformers" in caplog.text
