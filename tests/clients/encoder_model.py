"""A tiny random encoder: equal texts have equal vectors, and different texts have different ones."""

from pathlib import Path

from tests.support import encoders
from tests.support.sentence_folder import write_modules
from tests.support.tokenizer_builders import wordpiece_backend

ENCODER = "encoder"  # its name


def write_encoder(folder: Path) -> Path:
    """Write the encoder into `folder`, with prompts for queries and for documents."""
    encoders.save("bert", encoders.random_encoder("bert"), folder)
    wordpiece_backend().save(str(folder / "tokenizer.json"))
    prompts = {"query": "query: ", "document": "passage: "}
    return write_modules(folder, pooling={"pooling_mode": "mean"}, config_sentence_transformers={"prompts": prompts})
