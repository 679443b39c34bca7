from pathlib import Path
from typing import Any

import pytest
from numaserve.configs import presets
from numaserve.server.config.serve import ServeConfig, load_config
from numaserve.workers.interface.errors import OperatorError
from pydantic import ValidationError


def yaml_file(folder: Path, text: str) -> Path:
    path = folder / "numaserve.yaml"
    path.write_text(text)
    return path


def test_defaults_are_safe_to_run() -> None:
    config = load_config({"model": "demo"})
    assert config.host == "127.0.0.1"
    assert config.tp is None
    assert not config.log_prompts


def test_the_command_line_wins_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    path = yaml_file(tmp_path, "model: a\nport: 1234\nmax-queued-requests: 8\n")
    config = load_config({"model": "demo", "port": 4321, "tp": None}, path)
    assert (config.model, config.port, config.max_queued_requests) == ("demo", 4321, 8)
    assert config.chunked_prefill_size == ServeConfig.model_fields["chunked_prefill_size"].default


def test_a_configuration_cannot_be_changed() -> None:
    config = load_config({"model": "demo"})
    with pytest.raises(ValidationError):
        config.port = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "demo", "tp": 0}, "tp must be between 1 and 64, not '0'"),
        ({"model": "demo", "port": 70000}, "port must be between 0 and 65535, not '70000'"),
        ({"model": "demo", "mem_fraction_static": 1.5}, "mem_fraction_static must be above 0 and at most 0.98"),
        ({"model": "demo", "kv_cache_gib": float("nan")}, "kv_cache_gib must be above 0"),
        ({"model": "demo", "state_cache_gib": -1}, "state_cache_gib must be between 0 and 16384"),
        ({"model": "demo", "lora": ["sql"]}, "lora \"['sql']\" has 'sql'. Write NAME=PATH, such as sql=/srv/loras/sql"),
        ({"model": "demo", "lora": ["sql="]}, "lora \"['sql=']\" has no path for the adapter 'sql'. Write sql=PATH"),
        (
            {"model": "demo", "lora": ["a b=/x"]},
            "lora \"['a b=/x']\" has the adapter name 'a b'. A name must have 1 to 128 letters",
        ),
        (
            {"model": "demo", "lora": ["a=/x", "a=/y"]},
            "lora \"['a=/x', 'a=/y']\" names the adapter 'a' twice. Give each adapter a name",
        ),
        (
            {"model": "demo", "lora": ["a=/x", "b=/x"], "max_loras": 1},
            "lora \"['a=/x', 'b=/x']\" names 2 adapters, and 'max_loras' is 1: raise",
        ),
        ({"model": "demo", "log_level": "loud"}, "log_level must be 'debug', 'info', 'warning' or 'error'"),
        ({"model": "demo", "log_format": "xml"}, "log_format must be 'auto', 'text' or 'json', not 'xml'"),
        (
            {"model": "demo", "quantization": "int3"},
            "quantization must be 'int8', 'int4', 'fp8' or 'bf16', not 'int3'",
        ),
        (
            {"model": "demo", "kv_cache_dtype": "fp8"},
            "kv_cache_dtype must be 'bf16', 'int8' or 'fp8_e4m3', not 'fp8'",
        ),
        (
            {"model": "demo", "quantize_lm_head": True},
            "quantize_lm_head 'True' needs 'quantization': set 'quantization' too",
        ),
        ({"model": "demo", "context_parallel_from": 0}, "context_parallel_from must be at least 1, not '0'"),
        ({"model": "demo", "mask_deadline_ms": 0}, "mask_deadline_ms must be between 1 and 600000, not '0'"),
        ({"model": "demo", "dtype": "float16"}, "dtype must be 'auto' or 'bfloat16', not 'float16'"),
        ({"model": "demo", "served_model_name": ["a", " "]}, "served_model_name must not be blank"),
        ({"model": "demo", "served_model_name": ["a", 1]}, "served_model_name must be a name or a list of names"),
        ({"model": "demo", "served_model_name": 1}, "served_model_name must be a name or a list of names"),
        *(
            (
                {"model": "demo", "root_path": path},
                "root_path must start with a slash and not end with a slash, as in /llm, not ",
            )
            for path in (
                "",
                "/",
                "llm",
                "/llm/",
                "//llm",
                "/llm//v2",
                "/llm/..",
                "/a b",
                "/é",
                "/a?b",
                "/a%2fb",
                "/a\n",
            )
        ),
        ({"model": "demo", "speculative": "sufix"}, "speculative"),
        ({"model": "demo", "speculative": ["off", "suffix"]}, "speculative \"['off', 'suffix']\" contains 'off'"),
        (
            {"model": "demo", "speculative": "draft_model"},
            "speculative 'draft_model' needs a draft model: set the option 'draft_model' too",
        ),
        (
            {"model": "demo", "draft_quantization": "int8"},
            "draft_quantization 'int8' needs 'draft_model': set 'draft_model' too",
        ),
        (
            {"model": "demo", "task": "embed", "draft_model": "demo"},
            "draft_model 'demo' needs a task that generates tokens",
        ),
        (
            {"model": "demo", "kv_disk_path": "/kv", "prefix_cache": False},
            "kv_disk_path '/kv' needs the prefix cache, and 'prefix_cache' is off",
        ),
        ({"model": "demo", "kv_disk_gib": 8}, "kv_disk_gib '8' needs 'kv_disk_path': set 'kv_disk_path' too"),
        ({"model": "demo", "kv_disk_max_age": 60}, "kv_disk_max_age '60' needs 'kv_disk_path'"),
        ({"model": " "}, "model must not be blank"),
        ({}, "'model' is not set"),
    ],
)
def test_an_impossible_value_names_the_key_and_what_it_may_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OperatorError) as caught:
        load_config(options)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_runing_requests: 4", "unknown key 'max_runing_requests': did you mean 'max_running_requests'?"),
        ("settings: {}", "unknown key 'settings': "),
        ("kv-cache-dtype: int4", "kv_cache_dtype must be 'bf16', 'int8' or 'fp8_e4m3', not 'int4'"),
        ("zzz: 4", "unknown key 'zzz': docs/options.md lists the keys"),
        ("port: many", "port must be between 0 and 65535, not 'many'"),
        ("tp_size: 0", "tp must be between 1 and 64, not '0'"),
        ("max-model-len: 64\ncontext_length: 64", "context_length is set twice, once as 'context_length'"),
        ("port: 1\nport-: 2", "unknown key 'port_': did you mean 'port'?"),
        ("served_model_name: []", "served_model_name must be a name or a list of names"),
        ("- a\n- b", "must contain 'key: value' lines"),
        ("a: [", "is not a YAML file"),
        ("1: 2", "must contain 'key: value' lines"),
    ],
)
def test_a_mistake_in_the_file_is_one_line_naming_the_file(tmp_path: Path, text: str, message: str) -> None:
    path = yaml_file(tmp_path, text)
    with pytest.raises(OperatorError) as caught:
        load_config({"model": "demo"}, path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("tensor-parallel-size: 2", "tp", 2),
        ("tp-size: 2", "tp", 2),
        ("max_model_len: 64", "context_length", 64),
        ("max-num-seqs: 3", "max_running_requests", 3),
        ("dtype: bfloat16", "dtype", "bfloat16"),
        ("served-model-name: a", "served_model_name", ("a",)),
        ("served-model-name: [b, a, b]", "served_model_name", ("b", "a")),
        ("lora-modules: [b=/x, a/c=y=z]", "lora", (("b", Path("/x")), ("a/c", Path("y=z")))),
        ("loras: {b: /x, a/c: y}", "lora", (("b", Path("/x")), ("a/c", Path("y")))),
    ],
)
def test_the_file_may_have_the_names_of_other_servers(tmp_path: Path, text: str, key: str, value: object) -> None:
    assert getattr(load_config({"model": "demo"}, yaml_file(tmp_path, text)), key) == value


@pytest.mark.parametrize("path", ["/llm", "/team-a/llm.v2", "/~me/_x"])
def test_a_prefix_has_one_name_or_more(path: str) -> None:
    assert load_config({"model": "demo", "root_path": path}).root_path == path


def test_an_option_that_is_not_given_several_times_leaves_the_file_s_value(tmp_path: Path) -> None:
    config = load_config({"model": "demo", "served_model_name": []}, yaml_file(tmp_path, "served-model-name: a"))
    assert config.served_model_name == ("a",)


def test_a_misspelt_key_is_told_rather_than_that_the_right_one_is_missing(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="unknown key 'modle': did you mean 'model'"):
        load_config({}, yaml_file(tmp_path, "modle: demo"))


def test_a_missing_file_is_an_operator_error(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=r"the configuration file .* does not exist"):
        load_config({"model": "demo"}, tmp_path / "none.yaml")


@pytest.mark.parametrize("name", presets())
def test_every_shipped_preset_is_a_configuration(name: str) -> None:
    config = load_config({"port": 0} if "models" in presets()[name].parts else {"model": "demo"}, Path(name))
    assert config.model


def test_a_file_comes_before_the_preset_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("laptop").write_text("model: mine\n")
    assert load_config({}, Path("laptop")).model == "mine"


def test_a_name_that_is_neither_file_nor_preset_is_answered_with_the_presets() -> None:
    with pytest.raises(
        OperatorError, match=r"the configuration file lap does not exist: name an existing file or a preset \(.*laptop"
    ):
        load_config({}, Path("lap"))


def test_a_draft_model_drafts_unless_speculative_says_otherwise() -> None:
    def drafters(**options: object) -> tuple[str, ...]:
        return load_config({"model": "demo", **options}).drafters

    others = ("prediction", "suffix", "grammar")
    assert drafters() == drafters(speculative="off") == drafters(draft_model="small", speculative="off") == ()
    assert drafters(speculative="auto") == (*others, "mtp")
    assert drafters(speculative="auto", task="embed") == others
    assert (
        drafters(draft_model="small") == drafters(draft_model="small", speculative="auto") == (*others, "draft_model")
    )
    assert drafters(draft_model="small", speculative=["draft_model", "suffix"]) == ("suffix", "draft_model")
    assert drafters(speculative=["mtp", "suffix"]) == ("suffix", "mtp")
    with pytest.raises(OperatorError, match="cannot be combined with 'draft_model'"):
        drafters(draft_model="small", speculative="mtp")
