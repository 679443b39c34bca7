"""The server's tokenizer in the form that llguidance needs."""

from __future__ import annotations

from typing import Protocol

import msgspec
from llguidance import LLTokenizer


class DefinedTokenizer(Protocol):
    """The interface that masks need of a tokenizer."""

    vocab_size: int
    eos_token_ids: frozenset[int]
    special_token_ids: frozenset[int]

    def definition(self) -> str:
        """Return the tokenizer as the text of a tokenizer.json."""

    def token_text(self, token_id: int) -> str:
        """Return the vocabulary's spelling of the token."""


class Vocabulary(msgspec.Struct, frozen=True):
    """The tokens that masks cover."""

    definition: str  # the text of a tokenizer.json
    size: int  # bits of a mask: the token ids of the tokenizer or of the model, whichever has more
    eos: tuple[int, ...]  # all of them are allowed where the grammar may end
    special: dict[str, int]  # ids by spelling; the grammar's plain text never matches these

    @classmethod
    def of(cls, tokenizer: DefinedTokenizer, model_vocab_size: int) -> Vocabulary:
        """Return the vocabulary of `tokenizer` for a model with `model_vocab_size` logits.

        A model may have more logits than there are tokens, and no grammar allows the additional ones, or fewer.
        """
        size = max(tokenizer.vocab_size, model_vocab_size)
        return cls(
            definition=tokenizer.definition(),
            size=size,
            eos=tuple(sorted(token_id for token_id in tokenizer.eos_token_ids if token_id < size)),
            special={tokenizer.token_text(token_id): token_id for token_id in sorted(tokenizer.special_token_ids)},
        )

    def load(self) -> LLTokenizer:
        """Return llguidance's tokenizer. It takes some tenths of a second and holds the GIL."""
        return LLTokenizer(self.definition, n_vocab=self.size, eos_token=list(self.eos))
