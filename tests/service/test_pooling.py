"""The modules of sentence-transformers that are served."""

from pathlib import Path

import pytest
from numaserve.server.generation.embedding_settings import EmbeddingSettings
from numaserve.server.service.model.pooling import embedding_settings, served_modules
from numaserve.workers.interface.errors import OperatorError

from tests.support.sentence_folder import write_modules


@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "last"])
def test_each_way_of_pooling_is_served(pooling: str, tmp_path: Path) -> None:
    mode = "lasttoken" if pooling == "last" else pooling
    modules = served_modules(write_modules(tmp_path, pooling={"pooling_mode": mode}))
    assert modules is not None
    assert (modules.pooling, modules.normalize) == (pooling, True)


def test_a_model_that_says_nothing_is_taken_as_it_is(tmp_path: Path) -> None:
    assert served_modules(tmp_path) is None
    assert served_modules(tmp_path / "model.gguf") is None


def test_a_module_behind_the_pooling_is_refused_by_its_kind(tmp_path: Path) -> None:
    kinds = ("Transformer", "Pooling", "Dense")
    with pytest.raises(OperatorError, match="need 1 Dense modules"):
        served_modules(write_modules(tmp_path, *kinds, pooling={"pooling_mode_lasttoken": True}))


def test_prompts_and_scaling_are_those_of_the_files(tmp_path: Path) -> None:
    config = {"prompts": {"query": "q: ", "document": ""}, "default_prompt_name": "query"}
    folder = write_modules(
        tmp_path,
        *("Transformer", "Pooling"),
        pooling={"pooling_mode_lasttoken": True},
        config_sentence_transformers=config,
        sentence_bert_config={"do_lower_case": True},
    )
    assert embedding_settings(folder) == EmbeddingSettings(
        {"query": "q: ", "document": ""}, "query", lowercase=True, normalize=False
    )


def test_without_these_files_vectors_are_scaled_and_texts_are_taken_as_they_are(tmp_path: Path) -> None:
    assert embedding_settings(tmp_path) == EmbeddingSettings(normalize=True, lowercase=False)
