"""Prompts that are too long, cut to the length that fits."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from numaserve.server.generation.asked import Length
from numaserve.server.generation.context import ApiContext
from numaserve.server.http.errors import bad_request, context_length_exceeded
from numaserve.server.text.work import Turns
from numaserve.server.tokenizer.types import TokenizerProtocol

_PROBE = "a"


def limit_of(context: ApiContext, length: Length) -> int:
    """Return the maximum number of tokens of a prompt."""
    whole = context.limits.context_length
    return whole if length.limit is None else min(length.limit, whole)


async def cut_text(context: ApiContext, turns: Turns, text: str, length: Length) -> list[int]:
    """Return the tokens of a text, cut to `length`. The special tokens that the tokenizer adds at both ends are kept.

    Raises `ApiError` if the limit leaves no space between the special tokens.
    """
    limit = limit_of(context, length)
    tokens = await turns.encode_part(text, at_least=limit, of_end=length.cut == "start")
    if len(tokens) <= limit:
        return tokens
    before, after = await turns.run(partial(_added, context.tokenizer))
    space = limit - before - after
    if space < 1:
        least = before + after + 1
        message = (
            f"'{length.param}' is {limit}, but the tokenizer adds {before + after} special tokens to a text. "
            f"Send {least} or more."
        )
        raise bad_request(message, length.param, "limit_too_small")
    end = len(tokens) - after
    return [*tokens[:before], *cut_tokens(tokens[before:end], space, length), *tokens[end:]]


def cut_tokens(tokens: list[int], limit: int, length: Length) -> list[int]:
    """Return the last `limit` tokens where the start is left out, otherwise the first ones."""
    return tokens[-limit:] if length.cut == "start" else tokens[:limit]


def check_length(tokens: Sequence[int], length: Length, param: str) -> None:
    """Raise `ApiError` for a prompt that exceeds the limit of the request."""
    if length.limit is not None and len(tokens) > length.limit:
        raise context_length_exceeded(
            f"'{length.param}' is {length.limit}, but the input has {len(tokens)} tokens. "
            "Shorten the input, or let the server truncate it.",
            param,
        )


def _added(tokenizer: TokenizerProtocol) -> tuple[int, int]:
    """Return the numbers of special tokens that the tokenizer puts before and after a text.

    They are counted on a text without special tokens: any text may begin or end with special tokens of its own, which
    count as text.
    """
    plain, whole = tokenizer.encode(_PROBE, add_special_tokens=False), tokenizer.encode(_PROBE)
    places = range(len(whole) - len(plain) + 1)
    before = next((at for at in places if whole[at : at + len(plain)] == plain), 0)
    return before, len(whole) - len(plain) - before
