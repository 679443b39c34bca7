"""The prompts and the scaling of embeddings."""

from pathlib import Path

from numaserve.server.generation.embedding_settings import EmbeddingSettings
from numaserve.server.service.model.embedding import embedding_settings

from tests.support.sentence_folder import write_modules


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
    assert embedding_settings(tmp_path / "model.gguf") == EmbeddingSettings()
