"""The serve command over fake workers, with a tiny model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_worker import VOCAB
from served import Serve
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

SCRIPT = Path(__file__).with_name("serve_fake.py")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny-model"
    folder.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "vocab_size": VOCAB,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 4096,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer(models.WordLevel({f"w{index}": index for index in range(VOCAB)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text("{}")
    return folder


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Where the server's standard error goes: a pipe that nobody reads would fill up and stop it."""
    return tmp_path / "log"


@pytest.fixture
def serve(model: Path, log: Path) -> Iterator[Serve]:
    started: list[subprocess.Popen[str]] = []

    def start(*words: str, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
        with log.open("w") as errors:
            process = subprocess.Popen(
                [sys.executable, str(SCRIPT), str(model), *words],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | (environment or {}),
            )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
