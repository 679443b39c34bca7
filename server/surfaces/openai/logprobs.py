"""Log-probabilities in the two formats of OpenAI."""

import codecs
from collections.abc import Sequence

import msgspec
from numaserve.server.tokenizer.types import TokenizerProtocol
from numaserve.workers.interface.protocol import TokenLogprobs

_LOWEST = -9999.0  # JSON has no -infinity; OpenAI writes this value


def finite(logprob: float) -> float:
    """Return the log-probability as a number that JSON can represent."""
    return max(logprob, _LOWEST)


class TokenNames:
    """The spelling of token ids in answers."""

    def __init__(self, tokenizer: TokenizerProtocol, *, as_ids: bool = False) -> None:
        """Spell tokens of `tokenizer`. `as_ids` spells ids instead, as vLLM does, because tokens may look alike."""
        self._tokenizer = tokenizer
        self._as_ids = as_ids

    def bytes_of(self, token: int) -> bytes:
        """Return the bytes of a token; none for ids of a padded vocabulary that the tokenizer lacks."""
        return self._tokenizer.token_bytes(token) if token < self._tokenizer.vocab_size else b""

    def text_of(self, token: int, prefix: str = "") -> str:
        """Return the token as text, or as ``\\xe2\\x82`` if its bytes are not a whole character."""
        if self._as_ids:
            return f"token_id:{token}"
        data = self.bytes_of(token)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            return prefix + "".join(f"\\x{byte:02x}" for byte in data)


def chat_entries(names: TokenNames, tokens: Sequence[TokenLogprobs]) -> list[msgspec.Raw]:
    """Return the entries of a chat choice's `logprobs`, one per token.

    The entries are encoded as JSON: Python objects would take ten times the memory until the end of a collected answer.
    """

    def entry(token: int, logprob: float) -> dict[str, object]:
        return {"token": names.text_of(token), "logprob": finite(logprob), "bytes": list(names.bytes_of(token))}

    return [
        msgspec.Raw(
            msgspec.json.encode(
                {
                    **entry(item.token, item.logprob),
                    "top_logprobs": [
                        entry(token, logprob) for token, logprob in zip(item.top_ids, item.top_logprobs, strict=True)
                    ],
                }
            )
        )
        for item in tokens
    ]


def only_likeliest(tokens: Sequence[TokenLogprobs], count: int) -> Sequence[TokenLogprobs]:
    """Return the tokens with at most `count` alternatives; prompt and answer may need different numbers."""
    if not tokens or len(tokens[0].top_ids) <= count:
        return tokens
    return [
        msgspec.structs.replace(each, top_ids=each.top_ids[:count], top_logprobs=each.top_logprobs[:count])
        for each in tokens
    ]


def prompt_entries(names: TokenNames, tokens: Sequence[TokenLogprobs], count: int) -> list[msgspec.Raw]:
    """Return vLLM's `prompt_logprobs`: null for the first token, then an object by token ids for each token.

    The rank of a token that is not among the most likely ones is unknown.
    """

    def entry(token: int, logprob: float, rank: int | None) -> dict[str, object]:
        return {"logprob": finite(logprob), "rank": rank, "decoded_token": names.text_of(token)}

    entries: list[object] = [None]
    for item in only_likeliest(tokens, count):
        likeliest = zip(item.top_ids, item.top_logprobs, strict=True)
        of_token = {str(token): entry(token, logprob, rank) for rank, (token, logprob) in enumerate(likeliest, 1)}
        of_token.setdefault(str(item.token), entry(item.token, item.logprob, None))
        entries.append(of_token)
    return [msgspec.Raw(msgspec.json.encode(each)) for each in entries]


class CompletionLogprobs:
    """The `logprobs` of a text completion, chunk by chunk; `text_offset` continues through the text, in characters.

    The first token of an echoed prompt has no log-probability, because no token precedes it. Tokens in `hidden` are
    listed but take no space in the text.
    """

    def __init__(self, names: TokenNames, hidden: frozenset[int]) -> None:
        self._names = names
        self._hidden = hidden
        self._characters = 0
        # A character may span several tokens; each token starts at the end of the text known so far.
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def prompt(
        self, first_token: int, rest: Sequence[TokenLogprobs], hidden: frozenset[int]
    ) -> dict[str, list[object]]:
        """Return the columns of an echoed prompt, whose text hides other tokens than the output does."""
        columns = self._empty()
        self._append(columns, first_token, None, None, hidden=hidden)
        self._extend(columns, rest, hidden)
        return columns

    def output(self, tokens: Sequence[TokenLogprobs]) -> dict[str, list[object]]:
        """Return the columns of generated tokens."""
        columns = self._empty()
        self._extend(columns, tokens, self._hidden)
        return columns

    def _empty(self) -> dict[str, list[object]]:
        return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}

    def _extend(
        self, columns: dict[str, list[object]], tokens: Sequence[TokenLogprobs], hidden: frozenset[int]
    ) -> None:
        for item in tokens:
            top: dict[str, object] = {}
            for token, logprob in zip(item.top_ids, item.top_logprobs, strict=True):
                top.setdefault(self._text(token), finite(logprob))  # the most likely of tokens that look alike
            top.setdefault(self._text(item.token), finite(item.logprob))
            self._append(columns, item.token, finite(item.logprob), top, hidden=hidden)

    def _append(
        self,
        columns: dict[str, list[object]],
        token: int,
        logprob: float | None,
        top: dict[str, object] | None,
        *,
        hidden: frozenset[int],
    ) -> None:
        columns["tokens"].append(self._text(token))
        columns["token_logprobs"].append(logprob)
        columns["top_logprobs"].append(top)
        columns["text_offset"].append(self._characters)
        if token not in hidden:
            self._characters += len(self._decoder.decode(self._names.bytes_of(token)))

    def _text(self, token: int) -> str:
        return self._names.text_of(token, prefix="bytes:")


def joined(parts: Sequence[dict[str, list[object]]]) -> dict[str, list[object]]:
    """Return the chunks of a text completion's `logprobs` joined to one."""
    return {key: [value for part in parts for value in part[key]] for key in parts[0]}
