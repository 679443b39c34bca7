"""Tiny random encoders, for embeddings and with a head that scores pairs: equal texts have equal results, and different
texts have different ones."""

from pathlib import Path

from tests.support import encoders
from tests.support.sentence_folder import write_modules
from tests.support.tokenizer_builders import wordpiece_backend


def write_encoder(folder: Path) -> Path:
    """Write the encoder into `folder`, with prompts for queries and for documents."""
    encoders.save("bert", encoders.random_encoder("bert"), folder)
    wordpiece_backend().save(str(folder / "tokenizer.json"))
    prompts = {"query": "query: ", "document": "passage: "}
    return write_modules(folder, pooling={"pooling_mode": "mean"}, config_sentence_transformers={"prompts": prompts})


def write_reranker(folder: Path) -> Path:
    """Write a cross-encoder into `folder`."""
    encoders.save("bert", encoders.random_classifier("bert"), folder)
    wordpiece_backend().save(str(folder / "tokenizer.json"))
    return folder
