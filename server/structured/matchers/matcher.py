"""The position of one sequence in a grammar."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from copy import copy

from llguidance import LLMatcher
from numaserve.server.scheduler.matcher import ConstraintFailed, MaskState

_WORD_BITS = 32


def mask_bytes(vocab_size: int) -> int:
    """Return the size in bytes of a mask of `vocab_size` tokens: whole little-endian uint32 words."""
    return (vocab_size + _WORD_BITS - 1) // _WORD_BITS * 4


class GrammarMatcher:
    """Implements `TokenMatcher`. Where the grammar may end, every end token is allowed; where it must end, nothing
    else."""

    is_confined = False

    def __init__(
        self, matcher: LLMatcher, vocab_size: int, eos: frozenset[int], make: Callable[[], LLMatcher] | None = None
    ) -> None:
        """Take ownership of `matcher`.

        `eos` are the end tokens, which may repeat once the grammar has ended. `make` compiles an independent matcher of
        the same grammar to look ahead with; without `make` the matcher does not look ahead.
        """
        self._matcher = matcher
        self._make = make
        self._ahead: LLMatcher | None = None
        self._not_ahead: list[int] = []  # accepted tokens that the look-ahead matcher has not accepted yet
        self._eos = eos
        self._bytes = mask_bytes(vocab_size)

    def confine(self) -> None:
        """Do nothing: `MovableMatcher` moves the matcher to another process."""

    def accept(self, token: int) -> None:
        """Accept the sampled token. Raises `ConstraintFailed`."""
        ended = token in self._eos and self._matcher.is_stopped()
        # A matcher that has failed claims to have consumed an end token.
        if not (ended or self._matcher.consume_token(token)) or self._matcher.is_error():
            raise self._failure()
        if self._make is not None:
            self._not_ahead.append(token)

    def write_mask(self, address: int, nbytes: int) -> MaskState:
        """Write the mask of the next position to the `nbytes` bytes at `address`.

        Bits beyond the vocabulary are zero. If the model has fewer logits than its tokenizer has tokens, the mask has
        more bits than fit, and only the first ones are written. Raises `ConstraintFailed`.
        """
        if nbytes >= self._bytes:
            self._matcher.unsafe_compute_mask_ptr(address, self._bytes)
            ctypes.memset(address + self._bytes, 0, nbytes - self._bytes)
        else:
            whole = ctypes.create_string_buffer(self._bytes)
            self._matcher.unsafe_compute_mask_ptr(ctypes.addressof(whole), self._bytes)
            ctypes.memmove(address, whole, nbytes)
        if self._matcher.is_error():
            raise self._failure()
        return MaskState.MASK

    def fork(self) -> GrammarMatcher:
        """Return an independent matcher at the same position. Raises `ConstraintFailed`."""
        copied = copy(self)
        copied._matcher, copied._make = self._copy_ahead(), None
        return copied

    def would_accept(self, tokens: Sequence[int]) -> int:
        """Return the number of these tokens that may follow in sequence. Raises `ConstraintFailed`."""
        ahead = self._copy_ahead()
        count = ahead.validate_tokens(list(tokens))
        if ahead.is_error():
            raise ConstraintFailed("Some token ids are not in the vocabulary.")
        return count

    def forced(self) -> list[int]:
        """Return the tokens of the only text that may come next. Raises `ConstraintFailed`."""
        return self._copy_ahead().compute_ff_tokens()

    def _copy_ahead(self) -> LLMatcher:
        """Return a copy at this position for looking ahead.

        Copies share the states of their lexer, and so its limits and failures. Copies that look ahead are therefore
        made from a separate matcher that no answer depends on.
        """
        if self._make is None:
            raise ConstraintFailed("The constraint no longer supports draft tokens after a failure.")
        if self._ahead is None:
            self._ahead = self._make()
        tokens, self._not_ahead = self._not_ahead, []
        if not self._ahead.consume_tokens(tokens) or self._ahead.is_error():
            self._make = None  # permanently: the explored states stay in its lexer
            raise ConstraintFailed("The constraint failed while it checked draft tokens.")
        return self._ahead.deep_copy()

    def _failure(self) -> ConstraintFailed:
        reason = self._matcher.get_error().partition("\n")[0] or "the token is not allowed"
        return ConstraintFailed(f"The constraint allows no continuation of the output: {reason}.")
