"""A tokenizer that takes too much is refused by a process of its own, before the server loads it."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from numaserve.server.service.checks.tokenizer_check import CheckLimits, TokenizerCheck, check_tokenizer
from numaserve.server.tokenizer import load_tokenizer
from numaserve.server.tokenizer.types import TokenizerError

from tests.support.tokenizer_builders import byte_level_backend, write_sentencepiece_gguf

SIZE = byte_level_backend().get_vocab_size()
DEFINITION: dict[str, Any] = json.loads(byte_level_backend().to_str())
_FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}


def added(token_id: int) -> dict[str, object]:
    return {"id": token_id, "content": f"<extra_{token_id}>", **_FLAGS}


def with_added(*ids: int) -> dict[str, object]:
    return {"added_tokens": [*DEFINITION["added_tokens"], *map(added, ids)]}


def with_token(token_id: int) -> dict[str, object]:
    model = DEFINITION["model"]
    return {"model": {**model, "vocab": {**model["vocab"], "zz": token_id}}}


def doubling(character: str, times: int = 40) -> dict[str, object]:
    step = {"type": "Replace", "pattern": {"String": character}, "content": 2 * character}
    return {"normalizer": {"type": "Sequence", "normalizers": [step] * times}}


def write(folder: Path, fields: dict[str, object]) -> Path:
    (folder / "tokenizer.json").write_text(json.dumps(DEFINITION | fields))
    return folder


def test_a_sound_tokenizer_passes_with_tokens_that_the_model_has_no_logits_for(tmp_path: Path) -> None:
    check_tokenizer(write(tmp_path, with_added(*range(SIZE, SIZE + 1024))), SIZE)
    check_tokenizer(write_sentencepiece_gguf(tmp_path / "model.gguf"), SIZE)


@pytest.mark.parametrize(
    ("fields", "highest"),
    [
        (with_added(*range(SIZE, SIZE + 1025)), SIZE + 1024),
        (with_token(2**31), 2**31),
        (with_token(2**32 - 1), 2**32 - 1),
    ],
)
def test_ids_far_beyond_the_models_are_refused(fields: dict[str, object], highest: int, tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=rf"largest id is {highest}, and the model has {SIZE} tokens"):
        check_tokenizer(write(tmp_path, fields), SIZE)


def test_tokens_that_tokenizer_config_adds_are_counted_too(tmp_path: Path) -> None:
    listed = {str(each): {"content": f"<extra_{each}>"} for each in range(SIZE, SIZE + 1025)}
    (write(tmp_path, {}) / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": listed}))
    with pytest.raises(TokenizerError, match=f"largest id is {SIZE + 1024}"):
        check_tokenizer(tmp_path, SIZE)


@pytest.mark.parametrize(
    ("fields", "limits", "reason"),
    [
        (with_added(*range(SIZE, 100_000)), CheckLimits(cpu_seconds=0.2), "more than 0.2 s of processor time"),
        (doubling("a"), CheckLimits(), "ran for more than 2 s of processor time"),  # of its own, for a text
        (doubling("a"), CheckLimits(memory_bytes=192 * 2**20), "its process crashed twice"),
    ],
    ids=["tokens in number", "a normalizer that explodes on any text", "the same with little memory"],
)
def test_a_tokenizer_that_takes_too_much_is_refused(
    fields: dict[str, object], limits: CheckLimits, reason: str, tmp_path: Path
) -> None:
    """Though config.json has as many tokens."""
    with pytest.raises(TokenizerError, match=reason) as caught:
        check_tokenizer(write(tmp_path, fields), 100_000, limits)
    assert str(tmp_path) in str(caught.value)


def test_what_is_wrong_with_the_file_is_said_as_when_it_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(TokenizerError) as loaded:
        load_tokenizer(tmp_path)
    with pytest.raises(TokenizerError) as checked:
        check_tokenizer(tmp_path, SIZE)
    assert str(checked.value) == str(loaded.value)


@pytest.mark.parametrize(
    ("number", "reason"), [(signal.SIGSTOP, "did not finish within 0.1 s"), (signal.SIGKILL, "crashed the process or")]
)
def test_a_process_that_does_not_answer_is_not_waited_for(number: int, reason: str, tmp_path: Path) -> None:
    with TokenizerCheck(write(tmp_path, {}), CheckLimits(seconds=0.1)) as started:
        process = started._process
        os.kill(process.pid, number)
        if number == signal.SIGKILL:
            process._popen.wait()
        with pytest.raises(TokenizerError, match=reason):
            started.wait_until_loaded(SIZE)
    assert process.is_stopped


def test_a_server_that_finds_something_wrong_leaves_no_process(tmp_path: Path) -> None:
    with TokenizerCheck(write(tmp_path, {})) as started:
        process = started._process
    assert process.returncode is not None
