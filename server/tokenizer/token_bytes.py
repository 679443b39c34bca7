"""The bytes that a token adds to a text: the inverse of a vocabulary's spelling."""

import json
import re
from collections.abc import Callable
from functools import cache, partial
from typing import Any, TypeAlias

from numaserve.server.tokenizer.types import TokenizerError
from tokenizers import Tokenizer

TokenSpelling: TypeAlias = Callable[[str], bytes]  # vocabulary entry -> its bytes

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@cache
def byte_alphabet() -> dict[str, int]:
    """Return GPT-2's alphabet of byte-level vocabularies: 256 characters, each of which stands for one byte.

    Printable Latin-1 characters stand for themselves; the other bytes, in order, are U+0100 and the following
    characters.
    """
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


def byte_level_bytes(token: str) -> bytes:
    """Return the bytes of an entry of a byte-level vocabulary; an entry with a character outside the alphabet is plain
    text."""
    alphabet = byte_alphabet()
    try:
        return bytes(alphabet[character] for character in token)
    except KeyError:
        return token.encode()


def sentencepiece_bytes(token: str) -> bytes:
    """Return the bytes of an entry of a sentencepiece vocabulary: `<0xNN>` is a byte and U+2581 is a space."""
    byte = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace("\u2581", " ").encode()


def wordpiece_bytes(token: str, prefix: str) -> bytes:
    """Return the bytes of an entry of a WordPiece vocabulary: one with the prefix continues a word, and others follow a
    space. The decoder removes spaces before some punctuation, which depends on the text."""
    return token.removeprefix(prefix).encode() if token.startswith(prefix) else f" {token}".encode()


def spelling_of(backend: Tokenizer) -> TokenSpelling:
    """Return the spelling that the tokenizer's decoder inverts. Raises `TokenizerError` for an unknown decoder."""
    # The decoder's pickle state is its JSON. The state of the whole tokenizer includes the vocabulary: half a second.
    state: Any = backend.decoder.__getstate__() if backend.decoder is not None else '{"type": "none"}'
    decoder = json.loads(state)
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    kinds = {step["type"]: step for step in steps}
    if "ByteLevel" in kinds:
        return byte_level_bytes
    if kinds.keys() & {"ByteFallback", "Metaspace"}:
        return sentencepiece_bytes
    if "WordPiece" in kinds:
        return partial(wordpiece_bytes, prefix=kinds["WordPiece"]["prefix"])
    raise TokenizerError(
        f"the tokenizer's decoder ({', '.join(sorted(kinds))}) does not say which bytes a generated token stands for. "
        "Byte-level, sentencepiece and WordPiece decoders do. Use a copy of the model whose tokenizer.json has one"
    )
