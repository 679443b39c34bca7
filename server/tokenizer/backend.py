"""Encoding and decoding with the `tokenizers` library."""

from collections.abc import Sequence

import tokenizers
from numaserve.server.tokenizer.failures import while_serving


@while_serving
def encode(backend: tokenizers.Tokenizer, text: str, add_special_tokens: bool) -> list[int]:
    """Return the token ids of `text`. Raises `TokenizationError` if the library fails."""
    # The library's `encode` and `decode` hold the GIL all the time, a second for a megabyte. Its batch methods release
    # it; this one returns the same ids without computing offsets.
    return backend.encode_batch_fast([_without_surrogates(text)], add_special_tokens=add_special_tokens)[0].ids


@while_serving
def decode(backend: tokenizers.Tokenizer, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
    """Return the text of `token_ids`; ids outside the vocabulary add nothing. Raises `TokenizationError`."""
    return backend.decode_batch([token_ids], skip_special_tokens=skip_special_tokens)[0]


def _without_surrogates(text: str) -> str:
    """Return `text` with U+FFFD for each lone surrogate, which JSON can put into a string but UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
