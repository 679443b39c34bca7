"""The sampling defaults of generation_config.json, as they are read at the start."""

import json
import os
from pathlib import Path

import pytest
from numaserve.configs import generation_configs
from numaserve.server.service.model.model_argument import DEMO
from numaserve.server.service.model.sampling_defaults import read_sampling_defaults
from numaserve.workers.interface.errors import OperatorError


def folder_with(folder: Path, content: object) -> Path:
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / "generation_config.json").write_text(text)
    return folder


def test_the_five_keys_are_taken_and_no_others(tmp_path: Path) -> None:
    values = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0, "repetition_penalty": 1.05}
    others = {"do_sample": False, "max_new_tokens": 7, "eos_token_id": [1, 2], "n": 3, "stop": "x", "seed": 1}
    defaults = read_sampling_defaults("m", folder_with(tmp_path, {**values, **others}))
    assert defaults.given() == values


def test_null_sets_nothing(tmp_path: Path) -> None:
    defaults = read_sampling_defaults("m", folder_with(tmp_path, {"temperature": None, "top_k": 0}))
    assert defaults.given() == {"top_k": 0}


def test_a_folder_without_the_file_and_a_gguf_file_set_nothing(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    for model in (tmp_path, tmp_path / "model.gguf"):
        assert read_sampling_defaults("m", model).given() == {}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"temperature": -1}, "temperature is -1: Input should be greater than or equal to 0"),
        ({"temperature": 2.5}, "temperature is 2.5: Input should be less than or equal to 2"),
        ('{"temperature": NaN}', "temperature is nan"),
        ('{"top_p": 1e999}', "top_p is inf"),
        ({"top_p": "0.9"}, "top_p is 0.9"),
        ({"top_k": 1.5}, "top_k is 1.5"),
        ({"top_k": True}, "top_k is True"),
        ({"min_p": 2}, "min_p is 2"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0"),
        ({"repetition_penalty": [1]}, r"repetition_penalty is \[1\]"),
    ],
)
def test_a_file_that_cannot_be_meant_is_the_operator_s_to_mend(tmp_path: Path, content: object, message: str) -> None:
    with pytest.raises(OperatorError, match=message) as caught:
        read_sampling_defaults("m", folder_with(tmp_path, content))
    assert str(caught.value).startswith(str(tmp_path / "generation_config.json"))
    assert "--generation-config none" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [[1], "{", "[" * 100_000])
def test_a_file_that_is_no_json_object_is_of_no_use_to_the_configuration_either(
    tmp_path: Path, content: object
) -> None:
    with pytest.raises(OperatorError, match=r"generation_config\.json: .*JSON.* fetch it again"):
        read_sampling_defaults("m", folder_with(tmp_path, content))


def test_a_file_that_has_no_end_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "generation_config.json")
    with pytest.raises(OperatorError, match="not a regular file"):
        read_sampling_defaults("m", tmp_path)
    (tmp_path / "generation_config.json").unlink()
    with pytest.raises(OperatorError, match="larger than the limit of 16 MiB"):
        read_sampling_defaults("m", folder_with(tmp_path, "[" + " " * 2**24))


def test_the_demo_has_what_its_model_card_recommends(tmp_path: Path) -> None:
    (tmp_path / "demo.gguf").touch()
    assert read_sampling_defaults(DEMO, tmp_path / "demo.gguf").given() == {"temperature": 0.2, "top_p": 0.9}
    assert read_sampling_defaults(str(tmp_path / "demo.gguf"), tmp_path / "demo.gguf").given() == {}


@pytest.mark.parametrize("name", generation_configs())
def test_a_model_s_own_file_comes_before_the_one_that_the_package_carries(tmp_path: Path, name: str) -> None:
    assert read_sampling_defaults(name, tmp_path).given() != {}
    assert read_sampling_defaults(name, folder_with(tmp_path, {"top_k": 3})).given() == {"top_k": 3}
