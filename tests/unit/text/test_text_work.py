import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from numaserve.server.engine.types import QueueFull
from numaserve.server.text.work import PIECE_CHARACTERS, SMALL_CHARACTERS, TextTooLong, TextWork, Turns
from numaserve.server.tokenizer import Tokenizer
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

LONG = PIECE_CHARACTERS * 3 + 1


class Words:
    """A token for every two characters; counts what it is given, and waits where it is told to."""

    vocab_size = 10
    eos_token_ids: frozenset[int] = frozenset()
    bos_token_id: int | None = None
    special_token_ids: frozenset[int] = frozenset()
    hidden_token_ids: frozenset[int] = frozenset()

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.entered = threading.Event()
        self.opened = threading.Event()
        self.stuck_above = LONG * 10
        self.closed = False

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        self.seen.append(len(text))
        if len(text) > self.stuck_above:
            self.entered.set()
            assert self.opened.wait(30)
        return [0] * (len(text) // 2)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return "ab" * len(token_ids)

    def token_text(self, token_id: int) -> str:
        return "ab"

    def token_bytes(self, token_id: int) -> bytes:
        return b"ab"

    def render_chat(self, messages: list[dict[str, object]], **_arguments: object) -> str:
        self.entered.set()
        assert self.opened.wait(30)
        return "rendered"

    def close(self) -> None:
        self.closed = True


@asynccontextmanager
async def working(tokenizer: Words | Tokenizer) -> AsyncIterator[TextWork]:
    work = TextWork(tokenizer, max_requests=3)
    try:
        async with asyncio.timeout(60):
            yield work
    finally:
        work.close()


async def entered(tokenizer: Words) -> None:
    while not tokenizer.entered.is_set():
        await asyncio.sleep(0.001)


async def test_a_text_without_end_is_left_at_the_limit() -> None:
    tokenizer = Words()

    async with working(tokenizer) as work:
        with work.admit(LONG * 100) as turns, pytest.raises(TextTooLong) as refused:
            await turns.encode("x" * LONG * 100, max_tokens=PIECE_CHARACTERS)
        assert refused.value.tokens == PIECE_CHARACTERS * 3 // 2
    assert tokenizer.seen == [PIECE_CHARACTERS] * 3


async def test_a_long_text_has_the_tokens_that_it_has_as_a_whole() -> None:
    line = "The quick brown fox jumps over 13 lazy dogs, naïve 日本語 😀.\n"
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator([line], trainer)
    tokenizer = Tokenizer(backend, eos_token_ids=frozenset(), bos_token_id=None, eos_token_id=None, chat_template=None)
    text = line * (LONG // len(line) + 1)

    async with working(tokenizer) as work:
        with work.admit(len(text)) as turns:
            assert await turns.encode(text, max_tokens=len(text) * 4) == backend.encode(text).ids


async def test_a_small_text_does_not_wait_behind_a_large_one() -> None:
    tokenizer = Words()
    tokenizer.stuck_above = SMALL_CHARACTERS

    async def encode(work: TextWork, text: str) -> list[int]:
        with work.admit(len(text)) as turns:
            return await turns.encode(text, max_tokens=10**9)

    async with working(tokenizer) as work:
        large = asyncio.create_task(encode(work, "x" * (SMALL_CHARACTERS + 1)))
        await entered(tokenizer)
        assert await encode(work, "abcd") == [0, 0]
        assert not large.done()
        tokenizer.opened.set()
        await large


async def test_small_texts_share_turns_and_others_come_between(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, turns_taken = Words(), 0
    run = Turns.run

    async def counted(turns: Turns, work: Callable[[], Any]) -> Any:
        nonlocal turns_taken
        turns_taken += 1
        return await run(turns, work)

    monkeypatch.setattr(Turns, "run", counted)
    large = "x" * (SMALL_CHARACTERS - 2)
    texts = ["ab"] * 8000 + [large, "abcd", "", LONG * "x", "ab"]
    async with working(tokenizer) as work:
        with work.admit(len(large)) as turns:
            found = await turns.encode_all(texts, max_tokens=LONG)
            assert found == [await turns.encode(text, max_tokens=LONG) for text in texts]
            turns_taken = 0
            await turns.encode_all(texts[:8000], max_tokens=LONG)
    assert turns_taken == -(-8000 // (SMALL_CHARACTERS // 66 + 1))


async def test_a_template_that_hangs_holds_up_no_text_and_a_bounded_number_of_conversations() -> None:
    tokenizer = Words()

    async with working(tokenizer) as work:
        stuck = [asyncio.create_task(work.render(lambda: tokenizer.render_chat([]))) for _ in range(3)]
        await entered(tokenizer)
        with work.admit(4) as turns:
            assert await turns.encode("abcd", max_tokens=9) == [0, 0]
        with pytest.raises(QueueFull):
            await work.render(lambda: "")
        tokenizer.opened.set()
        assert await asyncio.gather(*stuck) == ["rendered"] * 3


async def test_the_rest_of_a_text_is_not_looked_at_when_its_client_leaves() -> None:
    tokenizer = Words()
    tokenizer.stuck_above = SMALL_CHARACTERS

    async with working(tokenizer) as work:

        async def encode() -> None:
            with work.admit(LONG) as turns:
                await turns.encode("x" * LONG, max_tokens=10**9)

        left = asyncio.create_task(encode())
        await entered(tokenizer)
        left.cancel()
        await asyncio.wait([left])
        tokenizer.opened.set()
        with work.admit(LONG) as turns:
            await turns.run(lambda: None)
    assert tokenizer.seen == [PIECE_CHARACTERS]


async def test_closing_ends_the_template_s_process_too() -> None:
    tokenizer = Words()

    async with working(tokenizer) as work:
        work.close()
    assert tokenizer.closed


@pytest.mark.parametrize(("of_end", "pieces"), [(False, [PIECE_CHARACTERS] * 2), (True, [1, *[PIECE_CHARACTERS] * 2])])
async def test_only_the_part_of_a_text_that_is_asked_for_is_tokenized(of_end: bool, pieces: list[int]) -> None:
    tokenizer = Words()
    async with working(tokenizer) as work:
        with work.admit(LONG) as turns:
            tokens = await turns.encode_part("x" * LONG, at_least=PIECE_CHARACTERS // 2, of_end=of_end)
    assert tokenizer.seen == [*pieces, sum(pieces)]
    assert len(tokens) == sum(pieces) // 2 > PIECE_CHARACTERS // 2
