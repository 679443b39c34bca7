"""The files of sentence-transformers: the modules after a transformer, and its prompts."""

import json
from pathlib import Path

import pytest
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.models.config.sentence_transformers import DenseModule, SentenceModules, read_sentence_modules

from tests.support.sentence_folder import KINDS, write_dense, write_modules

# Each mode as versions before 5.4 write it.
FLAGS = {
    f"pooling_mode_{name}": False
    for name in ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
}
CLS = {"pooling_mode_cls_token": True}


def read(folder: Path) -> SentenceModules:
    modules = read_sentence_modules(folder)
    assert modules is not None
    return modules


def test_a_folder_without_modules_declares_none(tmp_path: Path) -> None:
    assert read_sentence_modules(tmp_path) is None
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    assert read_sentence_modules(tmp_path / "model.gguf") is None


@pytest.mark.parametrize(
    ("flag", "mode", "pooling"),
    [
        ("cls_token", "cls", "cls"),
        ("mean_tokens", "mean", "mean"),
        ("max_tokens", "max", "max"),
        ("lasttoken", "lasttoken", "last"),
    ],
)
def test_both_forms_of_a_pooling_mode_are_read(tmp_path: Path, flag: str, mode: str, pooling: str) -> None:
    old, new, listed = (tmp_path / name for name in ("old", "new", "listed"))
    for folder in (old, new, listed):
        folder.mkdir()
    write_modules(old, pooling={"word_embedding_dimension": 8, **FLAGS, f"pooling_mode_{flag}": True})
    package = "sentence_transformers.sentence_transformer.modules"
    write_modules(new, pooling={"embedding_dimension": 8, "pooling_mode": mode}, package=package)
    write_modules(listed, pooling={"embedding_dimension": 8, "pooling_mode": [mode]}, package=package)
    assert [read(folder).pooling for folder in (old, new, listed)] == [pooling] * 3


def test_a_pooling_module_without_settings_takes_the_mean(tmp_path: Path) -> None:
    assert read(write_modules(tmp_path)).pooling == "mean"


@pytest.mark.parametrize(
    "pooling",
    [
        {**FLAGS, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True},
        {"pooling_mode": ["cls", "mean"]},
    ],
)
def test_several_modes_at_once_are_refused(tmp_path: Path, pooling: dict[str, object]) -> None:
    with pytest.raises(OperatorError, match=r"1_Pooling/config.json: .*several pooling modes \(cls, mean\)"):
        read_sentence_modules(write_modules(tmp_path, pooling=pooling))


@pytest.mark.parametrize(
    "pooling",
    [
        {**FLAGS, "pooling_mode_weightedmean_tokens": True},
        {"pooling_mode": "weightedmean"},
        {"pooling_mode": ["weightedmean"]},
        {"pooling_mode": "mean_sqrt_len_tokens"},
        {"pooling_mode": "first"},
    ],
)
def test_a_mode_that_is_not_supported_is_named_with_those_that_are(tmp_path: Path, pooling: dict[str, object]) -> None:
    with pytest.raises(OperatorError, match="is not supported; supported values: cls, mean, lasttoken, max"):
        read_sentence_modules(write_modules(tmp_path, pooling=pooling))


@pytest.mark.parametrize("value", [[], ["first"], [1], 1, {"a": 1}])
def test_a_pooling_mode_of_another_type_is_refused(tmp_path: Path, value: object) -> None:
    with pytest.raises(OperatorError, match="pooling_mode must"):
        read_sentence_modules(write_modules(tmp_path, pooling={"pooling_mode": value}))


@pytest.mark.parametrize(
    ("kinds", "normalize", "dense"),
    [
        (("Transformer", "Pooling"), False, ()),
        (KINDS, True, ()),
        (("Transformer", "Pooling", "Dense", "Dense", "Normalize"), True, ("2_Dense", "3_Dense")),
        (("Transformer", "Pooling", "Dense"), False, ("2_Dense",)),
    ],
)
def test_modules_after_the_pooling_are_recorded(
    tmp_path: Path, kinds: tuple[str, ...], normalize: bool, dense: tuple[str, ...]
) -> None:
    modules = read(write_modules(tmp_path, *kinds, pooling=CLS))
    assert (modules.normalize, modules.dense) == (
        normalize,
        tuple(DenseModule(folder, 72, 72, "none", biased=True) for folder in dense),
    )


def test_the_number_of_dense_modules_is_bounded(tmp_path: Path) -> None:
    kinds = ["Transformer", "Pooling", *["Dense"] * 16]
    assert len(read(write_modules(tmp_path, *kinds, pooling=CLS)).dense) == 16
    (tmp_path / "more").mkdir()
    with pytest.raises(OperatorError, match=r"modules.json: the file lists 17 Dense modules \(limit 16\)"):
        read_sentence_modules(write_modules(tmp_path / "more", *kinds, "Dense", pooling=CLS))


@pytest.mark.parametrize(
    ("name", "activation"), [("activation.Tanh", "tanh"), ("activation.ReLU", "relu"), (None, "tanh")]
)
def test_a_dense_module_has_sizes_and_an_activation(tmp_path: Path, name: str | None, activation: str) -> None:
    folder = write_modules(tmp_path, "Transformer", "Pooling", "Dense", pooling=CLS)
    kind = None if name is None else f"torch.nn.modules.{name}"
    write_dense(folder / "2_Dense", in_features=7, out_features=5, bias=False, activation_function=kind)
    assert read(folder).dense == (DenseModule("2_Dense", 7, 5, activation, biased=False),)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"in_features": 0}, "in_features"),
        ({"activation_function": "evil.Softsign"}, "activation_function"),
        ({"module_input_name": "token_embeddings"}, "module_input_name"),
    ],
)
def test_other_dense_modules_are_refused(tmp_path: Path, config: dict[str, object], message: str) -> None:
    folder = write_modules(tmp_path, "Transformer", "Pooling", "Dense", pooling=CLS)
    write_dense(folder / "2_Dense", **config)
    with pytest.raises(OperatorError, match=message):
        read_sentence_modules(folder)


@pytest.mark.parametrize(
    "kinds",
    [
        ("Transformer",),
        ("Pooling", "Transformer"),
        ("Transformer", "Dense", "Pooling"),
        ("Transformer", "Pooling", "Normalize", "Dense"),
        ("Transformer", "Pooling", "Normalize", "Normalize"),
        ("MLMTransformer", "SpladePooling", "Normalize"),
        ("SparseStaticEmbedding",),
        ("Transformer", "Pooling", "LayerNorm"),
        ("WordEmbeddings", "Pooling"),
    ],
)
def test_other_modules_and_orders_are_refused_with_their_names(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    with pytest.raises(OperatorError, match=f"the modules are {', '.join(kinds)}; supported are a Transformer"):
        read_sentence_modules(write_modules(tmp_path, *kinds, pooling=CLS))


def test_a_transformer_in_a_folder_of_its_own_is_refused(tmp_path: Path) -> None:
    write_modules(tmp_path, pooling=CLS)
    modules = json.loads((tmp_path / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(OperatorError, match=r"lies in the folder 0_Transformer.*move its files"):
        read_sentence_modules(tmp_path)


@pytest.mark.parametrize("place", ["..", "a/../../b", "/etc"])
def test_a_module_outside_of_the_model_is_not_read(tmp_path: Path, place: str) -> None:
    (tmp_path / "modules.json").write_text(json.dumps([{"path": place, "type": "x.Pooling"}]))
    with pytest.raises(OperatorError, match="module 0: the path lies outside the model's folder"):
        read_sentence_modules(tmp_path)


@pytest.mark.parametrize(
    ("text", "match"),
    [("{", "not valid JSON"), ("{}", "not a list of objects"), ("[1]", "not a list of objects"), ("[{}]", "type is")],
)
def test_a_file_that_is_no_list_of_modules_is_named(tmp_path: Path, text: str, match: str) -> None:
    (tmp_path / "modules.json").write_text(text)
    with pytest.raises(OperatorError, match=f"modules.json: .*{match}"):
        read_sentence_modules(tmp_path)


@pytest.mark.parametrize("name", ["sentence_bert_config", "sentence_xlm-roberta_config"])
def test_the_settings_of_texts_are_read(tmp_path: Path, name: str) -> None:
    settings = {name: {"max_seq_length": 384, "do_lower_case": True}}
    modules = read(write_modules(tmp_path, pooling=CLS, **settings))
    assert (modules.max_tokens, modules.lowercase) == (384, True)


def test_settings_that_are_left_out_are_the_models(tmp_path: Path) -> None:
    modules = read(write_modules(tmp_path, pooling=CLS, sentence_bert_config={"max_seq_length": None}))
    assert (modules.max_tokens, modules.lowercase) == (None, False)
    assert (modules.prompts, modules.default_prompt) == ({}, None)


@pytest.mark.parametrize("settings", [{"max_seq_length": 0}, {"max_seq_length": "many"}, {"do_lower_case": 1}])
def test_settings_of_another_type_are_refused(tmp_path: Path, settings: dict[str, object]) -> None:
    with pytest.raises(OperatorError, match=rf"sentence_bert_config.json: {next(iter(settings))} must be"):
        read_sentence_modules(write_modules(tmp_path, pooling=CLS, sentence_bert_config=settings))


def test_prompts_and_the_default_one_are_read(tmp_path: Path) -> None:
    config = {"prompts": {"query": "query: ", "document": "", "none": None}, "default_prompt_name": "query"}
    modules = read(write_modules(tmp_path, pooling=CLS, config_sentence_transformers=config))
    assert modules.prompts == {"query": "query: ", "document": "", "none": ""}
    assert modules.default_prompt == "query"


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"prompts": {"query": 1}}, "prompts: query must be a string"),
        ({"prompts": ["query: "]}, "prompts must be an object"),
        ({"prompts": {"query": "q: "}, "default_prompt_name": "passage"}, "'passage', and the prompts are: query"),
        ({"default_prompt_name": "passage"}, "'passage', and the prompts are: none"),
    ],
)
def test_prompts_that_make_no_sense_are_refused(tmp_path: Path, config: dict[str, object], match: str) -> None:
    with pytest.raises(OperatorError, match=rf"config_sentence_transformers.json: .*{match}"):
        read_sentence_modules(write_modules(tmp_path, pooling=CLS, config_sentence_transformers=config))


@pytest.mark.parametrize(("mode", "refused"), [("mean", True), ("max", True), ("cls", False), ("lasttoken", False)])
def test_a_mean_without_the_prompt_is_refused_where_there_are_prompts(tmp_path: Path, mode: str, refused: bool) -> None:
    with_prompts, without = tmp_path / "with", tmp_path / "without"
    pooling = {"pooling_mode": mode, "include_prompt": False}
    for folder, prompts in ((with_prompts, {"query": "query: "}), (without, {"query": ""})):
        folder.mkdir()
        write_modules(folder, pooling=pooling, config_sentence_transformers={"prompts": prompts})
    assert read(without).pooling
    if refused:
        with pytest.raises(OperatorError, match="leaves out its prompt"):
            read_sentence_modules(with_prompts)
    else:
        assert read(with_prompts).pooling
