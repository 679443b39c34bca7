"""Texts and pairs of texts as a classifier reads them. A pair is one sequence, with special tokens around both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from numaserve.server.generation.asked import Asked, Item, Length, Texts
from numaserve.server.generation.context import ApiContext
from numaserve.server.generation.prompts import check_text_length, encode
from numaserve.server.generation.token_choice import Sampling
from numaserve.server.generation.truncation import cut_text
from numaserve.server.text.work import Turns
from numaserve.server.tokenizer.types import PairForm

_TOO_LONG = "a text has more than {} tokens. Shorten the text."


@dataclass(frozen=True)
class Cut:
    """The cuts of inputs that are too long. Without a cut an input that does not fit is refused."""

    second: int | None = None  # the most tokens of the second text of a pair
    context: bool = False  # cut inputs to the context of the model, of a pair the longer text first

    def whole_characters(self, item: Item) -> int:
        """Return the number of characters of an input that may not be cut."""
        if self.context:
            return 0
        if isinstance(item, str):
            return len(item)
        return sum(map(len, item)) if self.second is None else len(item[0])


WHOLE = Cut()


async def items_asked(
    context: ApiContext, items: Sequence[Item], cut: Cut, *, param: str, model: str | None, priority: int = 0
) -> Asked:
    """Return the request for a vector of each text or pair. Raises `ApiError` for texts that are too long, and
    `QueueFull`."""
    lengths = [len(item) if isinstance(item, str) else sum(map(len, item)) for item in items]
    for item in items:
        check_text_length(context, cut.whole_characters(item), param)
    with context.text.admit(sum(lengths)) as turns:
        tokens = _Tokens(context, turns, cut, param)
        found = [await tokens.of(item) for item in items]
    texts = Texts([prompt for prompt, _ in found], param=param, second_texts=[second for _, second in found])
    return Asked(texts, Sampling(), model=model, pool="whole", priority=priority)


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
    _form: PairForm | None = None  # found at the first pair: texts alone do not need it
    _last: tuple[str, list[int]] = ("", [])  # the last first text: a query is the same for all of its documents

    async def of(self, item: Item) -> tuple[list[int], int]:
        """Return the tokens of a text or a pair, and the position of the first token of type 1, 0 if there is none."""
        if isinstance(item, str):
            return await self._text(item), 0
        first, second = item
        if self._form is None:
            self._form = await self.turns.run(self.context.tokenizer.pair_form)
        if self._last[0] != first:
            self._last = first, await self._part(first)
        limit = self.context.limits.context_length - self._form.added if self.cut.context else None
        last = (await self._part(second, may_be_cut=self.cut.second is not None))[: self.cut.second]
        return self._form.joined(*cut_pair(self._last[1], last, limit))

    async def _text(self, text: str) -> list[int]:
        if self.cut.context:
            return await cut_text(self.context, self.turns, text, Length(cut="end"))
        return await encode(self.context, self.turns, text, self.param, too_long=_TOO_LONG)

    async def _part(self, text: str, *, may_be_cut: bool = False) -> list[int]:
        """Return the tokens of a text of a pair, without special tokens; more than fit, but not all of a long text, if
        they may be cut."""
        if self.cut.context or may_be_cut:
            limit = self.context.limits.context_length
            return await self.turns.encode_part(text, at_least=limit, of_end=False, add_special_tokens=False)
        return await encode(self.context, self.turns, text, self.param, add_special_tokens=False, too_long=_TOO_LONG)
