"""What fuzzing has found once, and what it begins with: every input is refused in words, or taken."""

from pathlib import Path

import pytest

from tests.fuzz.mutations import CODECS, mutated
from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).with_name("corpus")


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_of_a_corpus_fails_its_reader(name: str) -> None:
    inputs = sorted((CORPUS / name).iterdir())
    assert inputs
    for path in inputs:
        TARGETS[name](path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_no_change_of_an_input_fails_its_reader(name: str) -> None:
    for number, path in enumerate(sorted((CORPUS / name).iterdir())):
        data = path.read_bytes()
        for seed in range(3):
            if name in CODECS:
                TARGETS[name](mutated(data, 1 << 14, 1000 * number + seed, CODECS[name], _cut))
            TARGETS[name](_cut(data, len(data) * (seed + 1) // 4))


def test_a_corpus_has_a_reader() -> None:
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)


def _cut(data: bytes, size: int) -> bytes:
    return data[:size]
