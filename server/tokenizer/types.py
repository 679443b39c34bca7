"""The interface of tokenizers to the rest of the server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numaserve.workers.interface.errors import OperatorError


class TokenizerError(OperatorError):
    """A tokenizer that cannot be loaded; the message states what the operator has to change."""


class TokenizationError(TokenizerError):
    """A text, or tokens, on which the tokenizer fails, also if repeated. Other requests are not affected."""


class TextBeyondLimits(TokenizationError):
    """A text that exceeds the time or memory limit of tokenization. The message is meant for the client."""


class TokenizerUnavailable(Exception):
    """The tokenizer process does not answer; the next request gets a new one. The message is meant for the client."""


class ChatTemplateError(ValueError):
    """A conversation that cannot be rendered: no template, a template that refuses it, or a limit."""


class ChatTemplateUnavailable(Exception):
    """The template's process does not answer; the next request gets a new one. The message is meant for the client."""


@dataclass(frozen=True)
class PairForm:
    """The tokens that a tokenizer puts before, between and after the two texts of a pair."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    typed: bool  # whether the tokens after `between` are of type 1

    @property
    def added(self) -> int:
        """The number of these tokens."""
        return len(self.before) + len(self.between) + len(self.after)

    def joined(self, first: Sequence[int], second: Sequence[int]) -> tuple[list[int], int]:
        """Return the tokens of a pair, and the position of its first token of type 1, or 0 if it has none."""
        begin = [*self.before, *first, *self.between]
        return [*begin, *second, *self.after], len(begin) if self.typed else 0


class RendersChats(Protocol):
    """A chat template."""

    def render_chat(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: Sequence[Mapping[str, object]] = (),
        add_generation_prompt: bool = True,
        arguments: Mapping[str, object] | None = None,
    ) -> str:
        """Return the conversation as written by the model's template, special tokens included; `encode` must not add
        them.

        `arguments` are values of variables that the template uses and the server leaves open. Raises
        `ChatTemplateError`.
        """


class TokenizerProtocol(RendersChats, Protocol):
    """A loaded tokenizer with its chat template. Several threads may call any method at once."""

    vocab_size: int  # number of token ids; every id is in [0, vocab_size)
    eos_token_ids: frozenset[int]
    bos_token_id: int | None
    special_token_ids: frozenset[int]
    hidden_token_ids: frozenset[int]  # the special tokens that `skip_special_tokens` leaves out
    chat_template: str  # its source; empty if the model has none

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of `text`; special tokens written out in `text` are recognised. Raises
        `TokenizationError`."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of `token_ids`. Raises `TokenizationError`."""

    def token_text(self, token_id: int) -> str:
        """Return the vocabulary's spelling of the token, for example `Ġthe`, `▁the`, `<0x0A>` or `<|im_end|>`."""

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that the token adds to a text; they need not be valid UTF-8 on their own."""

    def pair_form(self) -> PairForm:
        """Return how two texts are joined. Raises `TokenizationError`."""

    def definition(self) -> str:
        """Return the tokenizer as the text of a tokenizer.json, whatever format it was loaded from."""

    def close(self) -> None:
        """Release processes and memory; nothing can be rendered afterwards."""
