"""A tokenizer whose tokens are words, for the fake worker's vocabulary: token 42 is "w42 "."""

import re
import zlib
from collections.abc import Mapping, Sequence

from fake_worker import FIRST_TOKEN, VOCAB

EOS = 1


class WordTokenizer:
    vocab_size = VOCAB
    eos_token_ids = frozenset({EOS})
    bos_token_id: int | None = None
    special_token_ids = frozenset(range(FIRST_TOKEN))
    chat_template = "messages"

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [_id_of(word) for word in text.split()]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        kept = [t for t in token_ids if not (skip_special_tokens and t in self.special_token_ids)]
        return b"".join(self.token_bytes(token) for token in kept).decode()

    def token_text(self, token_id: int) -> str:
        return f"w{token_id}"

    def token_bytes(self, token_id: int) -> bytes:
        return b"w%d " % token_id

    def render_chat(
        self,
        messages: list[dict[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] = (),
        add_generation_prompt: bool = True,
        arguments: Mapping[str, object] | None = None,
    ) -> str:
        return " ".join(f"{message['role']} {message['content']}" for message in messages)

    def close(self) -> None:
        pass


def _id_of(word: str) -> int:
    if re.fullmatch(r"w\d+", word):
        return int(word[1:]) % VOCAB
    return FIRST_TOKEN + zlib.crc32(word.encode()) % (VOCAB - FIRST_TOKEN)
