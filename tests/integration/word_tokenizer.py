"""A tokenizer whose tokens are words, for the fake worker's vocabulary: token 42 is "w42 "."""

import re
import zlib

from fake_worker import FIRST_TOKEN, VOCAB

from tests.support.byte_tokenizer import ByteTokenizer

EOS = 1


class WordTokenizer(ByteTokenizer):
    eos_token_ids = frozenset({EOS})
    bos_token_id: int | None = None

    def __init__(self) -> None:
        super().__init__(vocab_size=VOCAB, render=_rendered)
        self.special_token_ids = self.hidden_token_ids = frozenset(range(FIRST_TOKEN))

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [_id_of(word) for word in text.split()]

    def token_text(self, token_id: int) -> str:
        return f"w{token_id}"

    def token_bytes(self, token_id: int) -> bytes:
        return b"w%d " % token_id


def _rendered(messages: list[dict[str, object]], *_: object, **_options: object) -> str:
    return " ".join(f"{message['role']} {message['content']}" for message in messages)


def _id_of(word: str) -> int:
    if re.fullmatch(r"w\d+", word):
        return int(word[1:]) % VOCAB
    return FIRST_TOKEN + zlib.crc32(word.encode()) % (VOCAB - FIRST_TOKEN)
