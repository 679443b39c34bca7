"""Masks of tokens, read and walked through."""

import array
import random

import numpy as np
from numaserve.server.scheduler.matcher import MaskState, TokenMatcher
from numaserve.server.tokenizer.types import TokenizerProtocol


def allowed(matcher: TokenMatcher, vocab_size: int, *, nbytes: int | None = None) -> set[int]:
    """The tokens that the matcher's next mask allows."""
    words = array.array("I", [0] * ((nbytes or (vocab_size + 31) // 32 * 4) // 4))
    address, length = words.buffer_info()
    state = matcher.write_mask(address, 4 * length)
    if state == MaskState.FREE:
        return set(range(vocab_size))
    assert state == MaskState.MASK
    return set(np.flatnonzero(np.unpackbits(np.frombuffer(words, np.uint8), bitorder="little")).tolist())


def matches(matcher: TokenMatcher, tokenizer: TokenizerProtocol, text: str) -> bool:
    """Whether the masks allow `text`, token by token as the tokenizer cuts it, and an end after it."""
    for token in tokenizer.encode(text, add_special_tokens=False):
        if token not in allowed(matcher, tokenizer.vocab_size):
            return False
        matcher.accept(token)
    return bool(allowed(matcher, tokenizer.vocab_size) & tokenizer.eos_token_ids)


def walk(matcher: TokenMatcher, tokenizer: TokenizerProtocol, rng: random.Random, *, most: int) -> str | None:
    """The text of a walk through masks that ends as soon as it may; None where it has not ended after `most` tokens.

    Short tokens are preferred from the middle of it on, as quotes and brackets are, which end what is open.
    """
    data = b""
    for step in range(most):
        tokens = allowed(matcher, tokenizer.vocab_size)
        if tokens & tokenizer.eos_token_ids and (rng.random() < 0.5 or step > most // 2):
            return data.decode()
        choices = sorted(tokens - tokenizer.eos_token_ids)
        if not choices:
            return data.decode()
        token = _closing(choices, tokenizer, rng) if step > most // 8 else rng.choice(choices)
        matcher.accept(token)
        data += tokenizer.token_bytes(token)
    return None


def _closing(choices: list[int], tokenizer: TokenizerProtocol, rng: random.Random) -> int:
    enders = [token for token in choices if tokenizer.token_bytes(token) in (b'"', b"}", b"]", b"}}", b"]}", b'"}')]
    return rng.choice(enders or choices)
