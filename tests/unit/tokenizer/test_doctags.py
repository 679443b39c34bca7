"""The tags of models that write pages as DocTags are text, and all their other special tokens are not."""

import pytest
from numaserve.server.tokenizer import Tokenizer
from numaserve.server.tokenizer.detokenizer import IncrementalDetokenizer

from tests.support.tokenizer_builders import byte_level_backend

# Some of granite-docling's special tokens. It writes locations as `<loc_`, digits and `>`, or in one token each.
TAGS = ("<doctag>", "</doctag>", "<section_header_level_1>", "<loc_155>", "<key_", "</value_", "<fcel>", "<_Python_>")
OTHERS = (
    *("<|end_of_text|>", "<|start_of_role|>", "<|pad|>", "<|unk|>", "<end_of_utterance>"),
    *("<image>", "<fake_token_around_image>", "<global-img>", "<row_2_col_3>"),
)


def tokenizer_of(*special: str) -> Tokenizer:
    backend = byte_level_backend()
    backend.add_special_tokens([*special])
    return Tokenizer(backend, eos_token_ids=frozenset({1}), bos_token_id=0, eos_token_id=1, chat_template=None)


def shown(tokenizer: Tokenizer, text: str, *, skip: bool) -> str:
    """The text of an answer, token by token; that of the same tokens at once is the same."""
    detokenizer = IncrementalDetokenizer(tokenizer, skip)
    ids = tokenizer.encode(text, add_special_tokens=False)
    found = "".join([*map(detokenizer.push, ids), detokenizer.flush()])
    assert tokenizer.decode(ids, skip_special_tokens=skip) == found
    return found


@pytest.mark.parametrize("tag", TAGS)
def test_a_tag_is_text_where_special_tokens_are_skipped(tag: str) -> None:
    tokenizer = tokenizer_of(*TAGS, *OTHERS)
    assert shown(tokenizer, f"a{tag}b<image>", skip=True) == f"a{tag}b"


@pytest.mark.parametrize("other", [*OTHERS, "<s>", "</s>"])
def test_another_special_token_is_left_out(other: str) -> None:
    tokenizer = tokenizer_of(*TAGS, *OTHERS)
    assert shown(tokenizer, f"<doctag>a{other}b", skip=True) == "<doctag>ab"
    assert shown(tokenizer, f"<doctag>a{other}b", skip=False) == f"<doctag>a{other}b"


def test_special_tokens_of_a_vocabulary_without_doctags_are_no_tags() -> None:
    tokenizer = tokenizer_of(*TAGS[1:], *OTHERS)
    assert shown(tokenizer, "a<fcel>b", skip=True) == "ab"
    assert tokenizer.hidden_token_ids == tokenizer.special_token_ids
