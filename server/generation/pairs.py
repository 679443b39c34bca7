"""Pairs of texts as an encoder reads them: in one sequence, with special tokens around both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from numaserve.server.generation.asked import Asked, Texts
from numaserve.server.generation.context import ApiContext
from numaserve.server.generation.prompts import check_text_length, encode
from numaserve.server.generation.token_choice import Sampling
from numaserve.server.text.work import Turns
from numaserve.server.tokenizer.types import PairForm

Pair = tuple[str, str]
_TOO_LONG = "a text has more than {} tokens. Shorten the text."


@dataclass(frozen=True)
class Cut:
    """The lengths to which pairs are cut: the second text alone to `second` tokens, and with `context` the longer of
    both until the pair fits the model. None and False: a pair that does not fit is refused."""

    second: int | None = None
    context: bool = False


WHOLE = Cut()


async def pairs_asked(
    context: ApiContext, pairs: Sequence[Pair], cut: Cut, *, param: str, model: str | None, priority: int
) -> Asked:
    """Return the request for a vector of each pair. Raises `ApiError` for texts that are too long, and `QueueFull`."""
    if not cut.context:
        for pair in pairs:
            check_text_length(context, sum(map(len, pair)), param)
    with context.text.admit(sum(len(text) for pair in pairs for text in pair)) as turns:
        form = await turns.run(context.tokenizer.pair_form)
        tokens = _Tokens(context, turns, cut, param)
        joined = [form.joined(*cut_pair(*await tokens.of(pair), limit=tokens.limit(form))) for pair in pairs]
    prompts, second_texts = [prompt for prompt, _ in joined], [second for _, second in joined]
    texts = Texts(prompts, param=param, second_texts=second_texts)
    return Asked(texts, Sampling(), model=model, pool=True, priority=priority)


def cut_pair(first: list[int], second: list[int], limit: int | None) -> tuple[list[int], list[int]]:
    """Return two texts with at most `limit` tokens together, which the longer one loses first, as the tokenizers of
    Hugging Face cut with the strategy `longest_first`. None: they are not cut."""
    if limit is None or len(first) + len(second) <= limit:
        return first, second
    shorter = min(len(first), len(second), limit // 2)
    if len(first) <= len(second):
        return first[:shorter], second[: limit - shorter]
    return first[: limit - shorter], second[:shorter]


@dataclass
class _Tokens:
    context: ApiContext
    turns: Turns
    cut: Cut
    param: str
    _last: tuple[str, list[int]] = ("", [])  # the last first text: a query is the same for all of its documents

    def limit(self, form: PairForm) -> int | None:
        """Return the tokens of both texts of a pair; None where they are not cut."""
        return self.context.limits.context_length - form.added if self.cut.context else None

    async def of(self, pair: Pair) -> tuple[list[int], list[int]]:
        """Return the tokens of both texts, without special tokens; of the second one no more than it is cut to."""
        first, second = pair
        if self._last[0] != first:
            self._last = first, await self._encoded(first)
        return self._last[1], (await self._encoded(second))[: self.cut.second]

    async def _encoded(self, text: str) -> list[int]:
        if self.cut.context:
            limit = self.context.limits.context_length
            return await self.turns.encode_part(text, at_least=limit, of_end=False, add_special_tokens=False)
        return await encode(self.context, self.turns, text, self.param, add_special_tokens=False, too_long=_TOO_LONG)
