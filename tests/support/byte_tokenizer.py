"""A tokenizer whose tokens are bytes, for whatever needs no real one."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tokenizers
from numaserve.server.tokenizer.token_bytes import byte_alphabet
from numaserve.server.tokenizer.types import ChatTemplateError, PairForm
from tokenizers import decoders, models, pre_tokenizers

BOS, EOS, TURN = 256, 257, 258
VOCAB = 260
SPECIAL = {BOS: "<s>", EOS: "</s>", TURN: "<t>"}
Messages = list[dict[str, Any]]


def _turns(
    messages: Messages,
    tools: Sequence[Mapping[str, object]],
    arguments: Mapping[str, object],
    *,
    add_generation_prompt: bool,
) -> str:
    if messages[-1]["content"] == "refuse me":
        raise ChatTemplateError("roles must alternate")
    turns = "".join(f"<t>{message['role']}\n{message['content']}" for message in messages)
    return "T" * bool(arguments.get("enable_thinking")) + turns + "<t>" * add_generation_prompt


def fixed(prompt: str) -> Callable[..., str]:
    """Return a template that writes the same of every conversation."""
    return lambda *_, **_options: prompt


class ByteTokenizer:
    """Token i below 256 is byte i, unless it is one of the `markers`, which are tokens by their spelling.

    A conversation is TURN, role, newline, content, per message, or what `render` makes of messages, tools and
    arguments. The last conversation is kept. `check` is called with each text and may raise.
    """

    bos_token_id: int | None = BOS
    eos_token_ids = frozenset({EOS})

    def __init__(
        self,
        *,
        chat_template: str = "messages",
        render: Callable[..., str] = _turns,
        markers: Mapping[int, str] | None = None,
        vocab_size: int = VOCAB,
        check: Callable[[str], object] = bool,
    ) -> None:
        self.chat_template = chat_template
        self.vocab_size = vocab_size
        self._render, self._markers, self._check = render, markers or {}, check
        spelt = SPECIAL | self._markers
        self._tokens = {spelling: token for token, spelling in spelt.items()}
        self._bytes = {byte: bytes([byte]) for byte in range(256)} | {each: spelt[each].encode() for each in spelt}
        self._parts = re.compile(f"({'|'.join(map(re.escape, self._tokens))})")
        self.special_token_ids = self.hidden_token_ids = frozenset(spelt)
        self.messages: Messages = []
        self.tools: list[Mapping[str, object]] = []
        self.arguments: dict[str, object] = {}

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        self._check(text)
        tokens = [BOS] if add_special_tokens else []
        for part in self._parts.split(text):
            tokens += [self._tokens[part]] if part in self._tokens else part.encode()
        return tokens

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        skipped = self.special_token_ids if skip_special_tokens else ()
        text = b"".join(self.token_bytes(t) for t in token_ids if t not in skipped).decode(errors="replace")
        self._check(text)
        return text

    def pair_form(self) -> PairForm:
        return PairForm((BOS,), (EOS,), (EOS,), typed=True)

    def definition(self) -> str:
        vocabulary = dict(byte_alphabet())
        backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        backend.add_special_tokens([*SPECIAL.values()])
        return backend.to_str()

    def token_text(self, token_id: int) -> str:
        return self._markers.get(token_id, f"<{token_id}>")

    def token_bytes(self, token_id: int) -> bytes:
        return self._bytes.get(token_id, b"")

    def render_chat(
        self,
        messages: Messages,
        *,
        tools: Sequence[Mapping[str, object]] = (),
        add_generation_prompt: bool = True,
        arguments: Mapping[str, object] | None = None,
    ) -> str:
        self.messages, self.tools, self.arguments = messages, list(tools), dict(arguments or {})
        return self._render(messages, self.tools, self.arguments, add_generation_prompt=add_generation_prompt)

    def close(self) -> None:
        pass
