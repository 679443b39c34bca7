"""Tokenizing, detokenizing and rendering for requests."""

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from functools import partial
from typing import TypeVar

from numaserve.server.text.executor import Executor
from numaserve.server.tokenizer.types import TokenizerProtocol

SMALL_CHARACTERS = 16 * 1024  # some milliseconds of work
_EACH_CHARACTERS = 64  # that take as long as a text without any
_CUT_TOKENS = 256  # more tokens than a cut changes around it
PIECE_CHARACTERS = 64 * 1024  # some tens of milliseconds

T = TypeVar("T")


class TextTooLong(Exception):
    """A text exceeds the maximum number of tokens; `tokens` were counted before the count stopped."""

    def __init__(self, tokens: int) -> None:
        super().__init__(f"the text has more than {tokens} tokens")
        self.tokens = tokens


class Turns:
    """The text work of one admitted request; each call waits for the executor."""

    def __init__(self, executor: Executor, tokenizer: TokenizerProtocol) -> None:
        self._executor = executor
        self._tokenizer = tokenizer

    async def run(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, which must be short, called in a thread."""
        return await self._executor.run(work)

    async def encode(self, text: str, *, max_tokens: int, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of `text`. Raises `TextTooLong` if a long text has more than `max_tokens`.

        The tokens of a long text are first counted in pieces, at a microsecond per token. An overlong text then blocks
        no other request, memory is needed for one piece only, and a disconnect of the client is noticed. The ids are
        computed from the whole text, because a cut may change the tokens around it. For the same reason the count is
        off by some tokens per cut: `max_tokens` must be well above the limit that is served.
        """
        if len(text) > PIECE_CHARACTERS:
            await self._count(text, max_tokens)
        return await self.run(partial(self._tokenizer.encode, text, add_special_tokens=add_special_tokens))

    async def encode_all(self, texts: Sequence[str], *, max_tokens: int) -> list[list[int]]:
        """Return the token ids of each text, as `encode` does. Small texts share turns: a turn takes longer than a
        word, and a request may have thousands of words."""
        tokens: list[list[int]] = []
        for group in _groups(texts):
            if len(group) == 1:
                tokens.append(await self.encode(group[0], max_tokens=max_tokens))
            else:
                tokens += await self.run(partial(_encoded, self._tokenizer, group))
        return tokens

    async def encode_part(
        self, text: str, *, at_least: int, of_end: bool, add_special_tokens: bool = True
    ) -> list[int]:
        """Return the token ids of `text`; for a long text, more than the first `at_least` ids, but not all.

        With `of_end` they are the last ids.
        """
        start, end = 0, len(text)
        if end > PIECE_CHARACTERS:
            async with aclosing(self._counted(text, backwards=of_end)) as counts:
                async for piece, tokens in counts:
                    if tokens > at_least + _CUT_TOKENS:
                        start, end = (piece.start, end) if of_end else (start, piece.stop)
                        break
        return await self.run(partial(self._tokenizer.encode, text[start:end], add_special_tokens=add_special_tokens))

    async def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Return the text of `token_ids`."""
        return await self.run(partial(self._tokenizer.decode, token_ids, skip_special_tokens=skip_special_tokens))

    async def _count(self, text: str, max_tokens: int) -> None:
        async with aclosing(self._counted(text)) as counts:
            async for _, tokens in counts:
                if tokens > max_tokens:
                    raise TextTooLong(tokens)

    async def _counted(self, text: str, *, backwards: bool = False) -> AsyncGenerator[tuple[slice, int], None]:
        """Yield each piece and the number of tokens up to its end, or with `backwards` from its start."""
        tokens = 0
        starts = range(0, len(text), PIECE_CHARACTERS)
        for start in reversed(starts) if backwards else starts:
            piece = slice(start, start + PIECE_CHARACTERS)
            tokens += len(await self.run(partial(self._tokenizer.encode, text[piece], add_special_tokens=False)))
            yield piece, tokens


def _groups(texts: Sequence[str]) -> Iterator[list[str]]:
    """Yield the texts in order, as many together as take some milliseconds."""
    group, size = list[str](), 0
    for text in texts:
        if group and size + len(text) > SMALL_CHARACTERS:
            yield group
            group, size = [], 0
        group.append(text)
        size += len(text) + _EACH_CHARACTERS
    if group:
        yield group


def _encoded(tokenizer: TokenizerProtocol, texts: Sequence[str]) -> list[list[int]]:
    return [tokenizer.encode(text) for text in texts]


class TextWork:
    """Runs the text work of requests in three executors.

    Small texts have an executor of their own, so that they do not wait for large ones. Chat templates have the third,
    so that a template's process delays nothing else. Each executor has one thread: the threads run on the cores of the
    workers, and one tokenizes faster than the workers compute.
    """

    def __init__(self, tokenizer: TokenizerProtocol, *, max_requests: int) -> None:
        """Create the executors; each admits `max_requests`, waiting or running."""
        self._tokenizer = tokenizer
        self._small, self._large, self._templates = (
            Executor(f"text-{name}", threads=1, max_requests=max_requests) for name in ("small", "large", "template")
        )

    @contextmanager
    def admit(self, size: int) -> Iterator[Turns]:
        """Return a context with the text work of a request of `size` characters or tokens in all. Raises
        `QueueFull`."""
        executor = self._small if size <= SMALL_CHARACTERS else self._large
        with executor.admitted():
            yield Turns(executor, self._tokenizer)

    async def render(self, render: Callable[[], str]) -> str:
        """Return the text that `render` makes with a chat template. Raises `QueueFull`, and the errors of `render`."""
        with self._templates.admitted():
            return await self._templates.run(render)

    def close(self) -> None:
        """Run nothing more, and end the template's process; other running work is not waited for."""
        for executor in (self._small, self._large, self._templates):
            executor.close()
        self._tokenizer.close()
