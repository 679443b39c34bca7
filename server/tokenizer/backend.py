"""Encoding and decoding with the `tokenizers` library."""

from collections.abc import Sequence

import tokenizers
from numaserve.server.tokenizer.failures import while_serving
from numaserve.server.tokenizer.types import PairForm, TokenizationError

_TEXT = "a b"


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


@while_serving
def pair_form(backend: tokenizers.Tokenizer, *, has_types: bool = True) -> PairForm:
    """Return how the tokenizer joins two texts, as it does with two short ones; unless `has_types` with type 0 for all
    tokens.

    Raises `TokenizationError` unless the tokens of each text come in one piece, the first text first, and types other
    than 0 begin with the second text and are 1.
    """
    pair = backend.encode(_TEXT, _TEXT)
    texts = [backend.encode(_TEXT, add_special_tokens=False).ids] * 2
    owners = pair.sequence_ids
    first, second = ([at for at, owner in enumerate(owners) if owner == which] for which in (0, 1))
    found = [pair.ids[part[0] : part[-1] + 1] for part in (first, second) if part]
    if found != texts or first[-1] > second[0]:
        raise TokenizationError("this tokenizer does not join two texts by special tokens around them")
    before, between = pair.ids[: first[0]], pair.ids[first[-1] + 1 : second[0]]
    typed = has_types and any(pair.type_ids)
    if typed and pair.type_ids != [int(at >= second[0]) for at in range(len(pair.ids))]:
        raise TokenizationError("this tokenizer does not give type 0 to the first text of a pair and 1 to the second")
    return PairForm(tuple(before), tuple(between), tuple(pair.ids[second[-1] + 1 :]), typed=typed)


def _without_surrogates(text: str) -> str:
    """Return `text` with U+FFFD for each lone surrogate, which JSON can put into a string but UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
