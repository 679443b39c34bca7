"""What the answer to a sequence is, whatever happens to the server meanwhile."""

import codecs
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from numaserve.server.scheduler.matcher import MaskState
from numaserve.workers.interface.protocol import SampledToken, TokenLogprobs

PAGE_SIZE = 4
EOS = 0
NAN = 1  # only in prompts: from its position on logits are not numbers
FIRST = 2  # of those that are letters
_HALVES = (b"\xc3", b"\xa9")  # the last two tokens: the halves of a character
VOCABULARY = 26 + FIRST + len(_HALVES)
EVERY = (1 << VOCABULARY) - 1


class Letters:
    """The tokenizer."""

    vocab_size = VOCABULARY
    hidden_token_ids = frozenset({EOS, NAN})

    def token_bytes(self, token_id: int) -> bytes:
        if token_id < FIRST:
            return b"<%d>" % token_id
        letter = token_id - FIRST
        return bytes([97 + letter]) if letter < 26 else _HALVES[letter - 26]


LETTERS = Letters()


class Shown(NamedTuple):
    """A tile of a prompt."""

    start: int
    rows: int
    picture: int


@dataclass(frozen=True)
class Wanted:
    """What a client wants of one sequence."""

    seed: int  # no two sequences have the same
    prompt: tuple[int, ...]
    max_new_tokens: int
    min_new_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    include_stop: bool = False
    prompt_logprobs: bool = False
    logprobs: int = -1
    named: tuple[int, ...] = ()  # tokens whose log-probabilities are wanted
    penalties: bool = False
    salt: int = 0
    pool: bool = False
    masked: bool = False
    mask_fault: tuple[int, str] = (-1, "")  # after so many tokens: free, empty, failed or broken
    poison: bool = False  # brings the workers down that compute it
    tiles: tuple[Shown, ...] = ()
    adapter: str = ""  # its name; the model alone answers where it is empty, or not loaded


@dataclass
class Answer:
    """What comes of a sequence."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    named: list[list[float]] = field(default_factory=list)
    rows: list[TokenLogprobs] = field(default_factory=list)  # of the prompt
    embedding: bytes = b""
    finish: str = ""  # stop, length or error; empty: it is not over
    stop_reason: int | str | None = None

    def is_part_of(self, whole: "Answer") -> bool:
        """Whether this much may have come of `whole` before the end."""
        return (
            self.tokens == whole.tokens[: len(self.tokens)]
            and whole.text.startswith(self.text)
            and self.logprobs == whole.logprobs[: len(self.logprobs)]
            and self.named == whole.named[: len(self.named)]
            and self.rows in ([], whole.rows)
        )


class Truth:
    """The tokens of a sequence, and the digests that its positions leave in the KV cache."""

    def __init__(self, wanted: Wanted, longest: int, group: str = "", adapter: str = "") -> None:
        """`longest`: prompt and output tokens of the longest sequence that can be served; `group`: the cache group;
        `adapter`: the content of the adapter.

        Salt and group are in every digest, so that a page which another scope has filled is read with a violation, and
        so are the pictures of tiles in the place of their tokens.
        """
        self.wanted = wanted
        self.longest = longest
        self.group = group
        self.adapter_digest = adapter
        self.seed, self.penalties = wanted.seed, wanted.penalties
        self.prompt_len = len(wanted.prompt)
        self.is_too_long = self.prompt_len > longest - min(1, wanted.max_new_tokens)
        max_tokens = min(longest, self.prompt_len + wanted.max_new_tokens)
        self.tokens = list(wanted.prompt)
        self.masks: list[tuple[MaskState, int]] = []  # of each token of the output
        self.nan_at = wanted.prompt.index(NAN) if NAN in wanted.prompt else 1 << 30
        self.tiles: dict[int, Hashable] = {each.start: (group, wanted.salt, each.picture) for each in wanted.tiles}
        self.digests: list[int] = []
        rows = {each.start + row: (each.picture, row) for each in wanted.tiles for row in range(each.rows)}
        digest = wanted.salt + (int.from_bytes(group.encode(), "little") << 1)
        if adapter:
            digest = hash((digest, *adapter.encode()))
        for position in range(max(max_tokens, self.prompt_len)):
            digest = hash((digest, rows.get(position, self.tokens[position])))
            self.digests.append(digest)
            if position >= self.prompt_len - 1:
                self.tokens.append(self._next(digest))
        self.answer = _answer(self, max_tokens)

    @property
    def fails(self) -> bool:
        """Whether the sequence ends with an error by itself."""
        return self.answer.finish == "error"

    def _next(self, digest: int) -> int:
        """The token after `digest`: any but those for prompts alone."""
        token = hash((digest, self.wanted.seed)) % (VOCABULARY - 1)
        token += token >= NAN
        if not self.wanted.masked:
            return token
        state, bits = self._mask(digest)
        self.masks.append((state, bits))
        while bits and not bits >> token & 1:
            token = (token + 1) % VOCABULARY
        return token

    def _mask(self, digest: int) -> tuple[MaskState, int]:
        step, fault = self.wanted.mask_fault
        if len(self.masks) == step:
            return {"free": (MaskState.FREE, EVERY & ~(1 << NAN)), "empty": (MaskState.MASK, 0)}.get(
                fault, (MaskState.DROP, 0)
            )
        bits = hash((digest, 7)) & EVERY & ~(1 << NAN)
        return MaskState.MASK, bits or 1 << FIRST

    def row(self, position: int) -> TokenLogprobs:
        """The log-probabilities at which the token of `position` was to be expected."""
        top = max(0, self.wanted.logprobs)
        digest = self.digests[position - 1]
        ids = [(digest + i) % VOCABULARY for i in range(top)]
        return TokenLogprobs(self.tokens[position], -(digest % 1000) / 100, ids, [-float(i) for i in range(top)])

    def named(self, position: int) -> list[float]:
        """Those of the tokens that are named."""
        return [-(self.digests[position - 1] % 997 + token) / 100 for token in self.wanted.named]

    def sampled(self, position: int) -> SampledToken:
        """What a worker tells of the token of `position`."""
        logprobs = self.row(position) if self.wanted.logprobs >= 0 else None
        return SampledToken(self.tokens[position], logprobs, self.named(position))

    def embedding(self) -> bytes:
        """The embedding of the prompt, which has one number."""
        return (self.digests[self.prompt_len - 1] % 65521).to_bytes(4, "little")

    def is_nan(self, position: int) -> bool:
        """Whether what `position` gives is not numbers."""
        return position >= self.nan_at


def _answer(truth: Truth, max_tokens: int) -> Answer:
    """The whole answer, worked out from the tokens alone."""
    wanted, answer = truth.wanted, Answer()
    if wanted.poison:
        answer.finish = "error"
        return answer
    if wanted.prompt_logprobs:
        answer.rows = [truth.row(position) for position in range(1, truth.prompt_len)]
    if truth.nan_at < truth.prompt_len:
        answer.rows, answer.finish = [], "error"
        return answer
    if wanted.pool:
        answer.embedding, answer.finish = truth.embedding(), "stop"
        return answer
    decoder, text, searched = codecs.getincrementaldecoder("utf-8")(errors="replace"), "", 0
    answer.finish = "length"
    for position in range(truth.prompt_len, max_tokens):
        token, count = truth.tokens[position], position - truth.prompt_len + 1
        if wanted.masked and (not truth.masks[count - 1][1]):
            answer.text, answer.finish = text, "error"
            return answer
        answer.tokens.append(token)
        if wanted.logprobs >= 0:
            answer.logprobs.append(truth.row(position))
        if wanted.named:
            answer.named.append(truth.named(position))
        if token in wanted.stop_token_ids and (count >= wanted.min_new_tokens or wanted.masked):
            answer.finish, answer.stop_reason = "stop", token
            text += decoder.decode(LETTERS.token_bytes(token)) if wanted.include_stop and token >= FIRST else ""
            break
        text += decoder.decode(LETTERS.token_bytes(token)) if token >= FIRST else ""
        if count < wanted.min_new_tokens:
            searched = len(text)
            continue
        ends = [(at + len(stop), at, stop) for stop in wanted.stop if (at := text.find(stop, searched)) >= 0]
        if ends:
            _, at, stop = min(ends)
            answer.text = text[:at] + (stop if wanted.include_stop else "")
            answer.finish, answer.stop_reason = "stop", stop
            return answer
    answer.text = text + decoder.decode(b"", final=True)
    return answer
