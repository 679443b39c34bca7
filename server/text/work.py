"""The tokenizing, detokenizing and rendering of requests."""

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from functools import partial
from typing import TypeVar

from numaserve.server.text.executor import Executor
from numaserve.server.tokenizer.types import TokenizerProtocol

SMALL_CHARACTERS = 16 * 1024  # some milliseconds of work
_CUT_TOKENS = 256  # more than a cut through a text changes
PIECE_CHARACTERS = 64 * 1024  # some tens of milliseconds

T = TypeVar("T")


class TextTooLong(Exception):
    """A text has more tokens than may be; `tokens` were counted before the rest was left."""

    def __init__(self, tokens: int) -> None:
        super().__init__(f"the text has more than {tokens} tokens")
        self.tokens = tokens


class Turns:
    """The text work of one admitted request: every call waits for its turn."""

    def __init__(self, executor: Executor, tokenizer: TokenizerProtocol) -> None:
        self._executor = executor
        self._tokenizer = tokenizer

    async def run(self, work: Callable[[], T]) -> T:
        """The result of `work`, which must be short, called in a thread."""
        return await self._executor.run(work)

    async def encode(self, text: str, *, max_tokens: int, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`. Raises `TextTooLong` where a long text has more than `max_tokens`.

        A long text is first counted in pieces, which costs a microsecond for a token: a text without end holds nobody
        up, memory is needed for a piece only, and a client that leaves is noticed. The ids are those of the whole text,
        as a cut may change the tokens around it. For the same reason a count is off by some tokens at each cut:
        `max_tokens` must be well above what will be served.
        """
        if len(text) > PIECE_CHARACTERS:
            await self._count(text, max_tokens)
        return await self.run(partial(self._tokenizer.encode, text, add_special_tokens=add_special_tokens))

    async def encode_beginning(self, text: str, *, at_least: int) -> list[int]:
        """Return the token ids of `text`; of a long text more than the first `at_least`, but not all."""
        end = len(text)
        if end > PIECE_CHARACTERS:
            async with aclosing(self._counted(text)) as counts:
                async for at, tokens in counts:
                    if tokens > at_least + _CUT_TOKENS:
                        end = at
                        break
        return await self.run(partial(self._tokenizer.encode, text[:end]))

    async def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Text of `token_ids`."""
        return await self.run(partial(self._tokenizer.decode, token_ids, skip_special_tokens=skip_special_tokens))

    async def _count(self, text: str, max_tokens: int) -> None:
        async with aclosing(self._counted(text)) as counts:
            async for _, tokens in counts:
                if tokens > max_tokens:
                    raise TextTooLong(tokens)

    async def _counted(self, text: str) -> AsyncGenerator[tuple[int, int], None]:
        """Yield the end of each piece, and the tokens up to there."""
        tokens = 0
        for start in range(0, len(text), PIECE_CHARACTERS):
            piece = text[start : start + PIECE_CHARACTERS]
            tokens += len(await self.run(partial(self._tokenizer.encode, piece, add_special_tokens=False)))
            yield start + len(piece), tokens


class TextWork:
    """Gives requests their turns: small texts in one executor and large ones in another, so that no small one waits
    behind large ones; chat templates in a third, so that a template's process can hold up nothing else.

    One thread for each: they run on the cores of the workers, and one tokenizes faster than those compute.
    """

    def __init__(self, tokenizer: TokenizerProtocol, *, max_requests: int) -> None:
        """`max_requests` may be in each executor, waiting or at work."""
        self._tokenizer = tokenizer
        self._small, self._large, self._templates = (
            Executor(f"text-{name}", threads=1, max_requests=max_requests) for name in ("small", "large", "template")
        )

    @contextmanager
    def admit(self, size: int) -> Iterator[Turns]:
        """Turns for a request of `size` characters, or tokens to decode, in all. Raises `QueueFull`."""
        executor = self._small if size <= SMALL_CHARACTERS else self._large
        with executor.admitted():
            yield Turns(executor, self._tokenizer)

    async def render(self, render: Callable[[], str]) -> str:
        """The text that `render` makes with a chat template. Raises `QueueFull` and what `render` does."""
        with self._templates.admitted():
            return await self._templates.run(render)

    def close(self) -> None:
        """Run nothing more, and end the template's process; what else runs is not waited for."""
        for executor in (self._small, self._large, self._templates):
            executor.close()
        self._tokenizer.close()
