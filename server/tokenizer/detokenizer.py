"""The text of a sequence that grows token by token."""

import codecs

from numaserve.server.tokenizer.types import TokenizerProtocol


class IncrementalDetokenizer:
    """Converts generated tokens to text, byte-exactly, in constant time per token.

    Bytes of an unfinished character are held back. Bytes that cannot become a character are U+FFFD, by the rule of
    `tokenizers` and of Unicode (one per maximal ill-formed part). A leading space is kept: the text continues a prompt,
    and only the first space of a whole text is an artefact of sentencepiece.

    The detokenizer joins the bytes of tokens. Rejected: decoding a window of tokens and cutting off the earlier text,
    as other servers do. It costs more and fails if a window starts inside a character.
    """

    def __init__(
        self,
        tokenizer: TokenizerProtocol,
        skip_special_tokens: bool = True,
        shown_tokens: frozenset[int] = frozenset(),
    ) -> None:
        """Start an empty text. `shown_tokens` are spelled out even if special tokens are skipped."""
        self._tokenizer = tokenizer
        self._skipped = tokenizer.hidden_token_ids - shown_tokens if skip_special_tokens else frozenset[int]()
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """Return the text that `token_id` makes certain; it may be empty."""
        if token_id in self._skipped:
            return ""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def flush(self) -> str:
        """Return the end of the text: an unfinished character becomes U+FFFD."""
        return self._decoder.decode(b"", final=True)
