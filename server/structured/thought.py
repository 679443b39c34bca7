"""Constraints that apply after a thought: the thought is free, and can be closed when it grows too long."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial

from numaserve.server.scheduler.matcher import ConstraintFailed, MaskState, TokenMatcher
from numaserve.server.structured.types import MatcherFactory


@dataclass(frozen=True)
class Thought:
    """The marks of a model's thought, and its limit."""

    end: str  # the text that ends it, with special tokens spelled out
    token_bytes: Callable[[int], bytes]  # the tokenizer's method, for special tokens too
    begin: int | None = None  # the token that begins it; None if the prompt has begun it
    max_tokens: int | None = None  # the limit after which it is closed
    closing: tuple[int, ...] = ()  # the tokens that close it; their text contains `end`


def after_thought(answer: MatcherFactory | None, thought: Thought) -> MatcherFactory:
    """Return a factory of matchers that leave the thought free and then apply `answer`, if there is one.

    If the prompt has not begun the thought, the model's first token decides whether it thinks.
    """
    return partial(_make, answer, thought)


def closing_thought(thought: Thought) -> MatcherFactory:
    """Return a factory of matchers that close the thought after its `max_tokens` and leave the answer free."""
    return after_thought(None, thought)


def _make(answer: MatcherFactory | None, thought: Thought) -> TokenMatcher:
    return _AfterThought(None if answer is None else answer(), thought)


class _AfterThought:
    """Implements `TokenMatcher`."""

    def __init__(self, answer: TokenMatcher | None, thought: Thought) -> None:
        self._answer = answer
        self._thought = thought
        self._end = thought.end.encode()
        self._tail = b""  # the end of the thought so far, at most the length that can begin the marker
        self._left = thought.max_tokens
        self._closing = list(thought.closing)
        self._may_begin = thought.begin is not None
        self._is_thinking = thought.begin is None

    @property
    def is_confined(self) -> bool:
        """Whether another process does the work on the answer."""
        return self._answer is not None and self._answer.is_confined

    def confine(self) -> None:
        """Move the work on the answer to another process."""
        if self._answer is not None:
            self._answer.confine()

    def accept(self, token: int) -> None:
        """Accept the sampled token. Raises `ConstraintFailed`."""
        if self._may_begin:
            self._may_begin = False
            if token == self._thought.begin:
                self._is_thinking = True
                return
        if self._is_thinking:
            self._think(token)
        elif self._answer is not None:
            self._answer.accept(token)

    def write_mask(self, address: int, nbytes: int) -> MaskState:
        """Write the mask of the next position, or return that any token is allowed. Raises `ConstraintFailed`."""
        if self._is_thinking:
            if self._left == 0 and self._closing:
                ctypes.memset(address, 0, nbytes)
                _allow(self._closing[0], address, nbytes)
                return MaskState.MASK
            return MaskState.FREE
        if self._answer is None:
            return MaskState.FREE
        state = self._answer.write_mask(address, nbytes)
        if self._may_begin and self._thought.begin is not None and state == MaskState.MASK:
            _allow(self._thought.begin, address, nbytes)
        return state

    def fork(self) -> _AfterThought:
        """Return an independent matcher at the same position."""
        copied = copy(self)
        copied._answer = None if self._answer is None else self._answer.fork()
        copied._closing = self._closing.copy()
        return copied

    def would_accept(self, tokens: Sequence[int]) -> int:
        """Return the number of these tokens that the answer may continue with; all of them before the answer begins."""
        begun = self._answer if not (self._is_thinking or self._may_begin) else None
        return len(tokens) if begun is None else begun.would_accept(tokens)

    def forced(self) -> Sequence[int]:
        """Return the tokens that close the thought, or the forced tokens of the answer."""
        if self._is_thinking:
            return self._closing if self._left == 0 else ()
        return () if self._answer is None or self._may_begin else self._answer.forced()

    def _think(self, token: int) -> None:
        if self._left == 0 and self._closing:
            if token != self._closing.pop(0):
                raise ConstraintFailed("The reasoning reached its token limit, and the model did not end it.")
        elif self._left:
            self._left -= 1
        before, found, after = (self._tail + self._thought.token_bytes(token)).partition(self._end)
        if not found:
            self._tail = before[-max(1, len(self._end) - 1) :]
            return
        self._is_thinking = False
        # The token may continue after the marker. White space there is ignored; text of the answer cannot be taken
        # back.
        if self._answer is not None and after.strip():
            raise ConstraintFailed(
                "The token that ends the reasoning also contains text of the response. This text cannot be constrained."
            )


def _allow(token: int, address: int, nbytes: int) -> None:
    if token >= 8 * nbytes:
        raise ConstraintFailed("The model's vocabulary has no token for the marker that ends the reasoning.")
    byte = ctypes.c_uint8.from_address(address + token // 8)
    byte.value |= 1 << token % 8
