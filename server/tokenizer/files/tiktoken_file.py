"""The tokenizer of a tiktoken model, the `tiktoken.model` of a folder without a tokenizer.json.

Each line of the file has the bytes of a token, in base64, and its rank, which is its id. Merges follow from the ranks.
The expression that splits a text and the number of special tokens are code of the model's folder, which is never run:
this module knows Kimi's.
"""

import base64
from pathlib import Path
from typing import Any

import tokenizers
from numaserve.server.tokenizer.files.sentencepiece import merges_from_scores
from numaserve.server.tokenizer.pre_tokenizers import KIMI_K2, pre_tokenization
from numaserve.server.tokenizer.token_bytes import byte_alphabet
from numaserve.server.tokenizer.types import TokenizerError
from numaserve.workers.interface.files import RANKS_BYTES, read_file

_CLASS = "TikTokenTokenizer"  # of Kimi's tokenization_kimi.py
_SPECIAL_TOKENS = 256  # ids after the ranks
# Each way to cut a token in two is looked up. Known vocabularies have tokens of 128 spaces.
_MAX_TOKEN_BYTES = 512


def check_class(config: dict[str, Any], path: Path) -> None:
    """Raise `TokenizerError` if `config`, the content of tokenizer_config.json, names another class than Kimi's: its
    texts may be split in another way."""
    name = config.get("tokenizer_class")
    if name != _CLASS:
        raise TokenizerError(
            f"{path} does not state how texts are split, and the tokenizer_class {str(name)[:100]!r} of "
            f"tokenizer_config.json is not supported with such a file (supported: {_CLASS}); use a copy of the model "
            "that has a tokenizer.json"
        )


def read_ranks(path: Path) -> list[bytes]:
    """Return the tokens of the file at `path` in the order of their ranks. Raises `TokenizerError` if it is no tiktoken
    model, or lacks a token or a byte."""
    lines = [line.split() for line in read_file(path, RANKS_BYTES).splitlines() if line]
    try:
        ranks = {int(rank): base64.b64decode(text, validate=True) for text, rank in lines}
    except ValueError as error:
        raise _error(path, str(error)) from error
    if sorted(ranks) != list(range(len(lines))):
        raise _error(path, "its ranks do not count from 0 without a gap")
    tokens = [ranks[rank] for rank in range(len(lines))]
    if len(set(tokens)) < len(tokens):
        raise _error(path, "a token has two ranks")
    if max(map(len, tokens), default=0) > _MAX_TOKEN_BYTES or b"" in tokens:
        raise _error(path, f"a token has no bytes, or more than {_MAX_TOKEN_BYTES}")
    if not {bytes([byte]) for byte in range(256)} <= set(tokens):
        raise _error(path, "some byte is not a token, so that some texts have no tokens")
    return tokens


def backend_of(tokens: list[bytes]) -> tokenizers.Tokenizer:
    """Return the tokenizer with `tokens` in the order of their ranks, without special tokens."""
    spelling = {byte: character for character, byte in byte_alphabet().items()}
    vocabulary = {token.decode("latin-1").translate(spelling): rank for rank, token in enumerate(tokens)}
    merges = merges_from_scores(vocabulary, [-rank for rank in range(len(tokens))])
    return pre_tokenization(KIMI_K2).tokenizer(vocabulary, merges)


def reserved_tokens(first: int) -> dict[str, dict[str, Any]]:
    """Return the special tokens from the id `first`, as tokenizer_config.json would list them. That file lists the
    tokens that have a name of their own."""
    ids = range(first, first + _SPECIAL_TOKENS)
    return {str(token_id): {"content": f"<|reserved_token_{token_id}|>", "special": True} for token_id in ids}


def _error(path: Path, what: str) -> TokenizerError:
    return TokenizerError(f"{path} is not a tiktoken model ({what}); download the model again")
