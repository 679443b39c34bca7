"""What sentence-transformers' files say of a model's embeddings, and what of it is served."""

import json
from pathlib import Path

import pytest
from numaserve.server.service.model.pooling import check_pooling
from numaserve.workers.interface.errors import OperatorError

KINDS = ("Transformer", "Pooling", "Normalize")


def folder(path: Path, *kinds: str, **modes: bool) -> Path:
    modules = [
        {"idx": index, "name": str(index), "path": f"{index}_{kind}", "type": f"sentence_transformers.models.{kind}"}
        for index, kind in enumerate(kinds)
    ]
    (path / "modules.json").write_text(json.dumps(modules))
    if "Pooling" in kinds:
        (path / "1_Pooling").mkdir()
        config = {"word_embedding_dimension": 64, **{f"pooling_mode_{name}": value for name, value in modes.items()}}
        (path / "1_Pooling" / "config.json").write_text(json.dumps(config))
    return path


def test_a_model_that_pools_its_last_token_is_served(tmp_path: Path) -> None:
    check_pooling(folder(tmp_path, *KINDS, cls_token=False, mean_tokens=False, lasttoken=True))


def test_a_model_that_says_nothing_is_taken_as_it_is(tmp_path: Path) -> None:
    check_pooling(tmp_path)
    check_pooling(tmp_path / "model.gguf")


def test_another_way_of_pooling_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="pooling_mode_mean_tokens"):
        check_pooling(folder(tmp_path, *KINDS, mean_tokens=True, lasttoken=False))


def test_a_module_behind_the_pooling_is_refused_by_its_kind(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="Dense"):
        check_pooling(folder(tmp_path, "Transformer", "Pooling", "Dense", lasttoken=True))


def test_a_file_that_is_no_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text("{")
    with pytest.raises(OperatorError, match="not valid JSON"):
        check_pooling(tmp_path)


@pytest.mark.parametrize("place", ["..", "a/../../b", "/etc"])
def test_a_module_outside_of_the_model_is_not_looked_at(tmp_path: Path, place: str) -> None:
    (tmp_path / "modules.json").write_text(json.dumps([{"path": place, "type": "x.Pooling"}]))
    with pytest.raises(OperatorError, match="outside the model's folder"):
        check_pooling(tmp_path)
