"""Sentencepiece BPE: a tokenizer from pieces and their scores, for any file format."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers
from tokenizers import pre_tokenizers as splitters

SPACE = "\u2581"


class PieceType(IntEnum):
    """The type of a piece, numbered as in sentencepiece and GGUF."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Pieces:
    """A vocabulary: the text, the score and the type of each piece, by id."""

    texts: Sequence[str]
    scores: Sequence[float]
    types: Sequence[int]
    unknown: int | None

    def of_type(self, kind: int) -> list[int]:
        """Return the ids of this type."""
        return [token_id for token_id, value in enumerate(self.types) if value == kind]


def build(pieces: Pieces, *, prefixed: bool, at_every_fragment: bool = False) -> tokenizers.Tokenizer:
    """Return the tokenizer: merges follow from the scores, and text without a piece falls back to byte tokens.

    `prefixed` puts a space before the text; with `at_every_fragment`, also after each special token (Phi-3).
    """
    vocabulary = {text: token_id for token_id, text in enumerate(pieces.texts)}
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=merges_from_scores(vocabulary, pieces.scores),
            unk_token=None if pieces.unknown is None else pieces.texts[pieces.unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    mark_spaces(backend, prefixed=prefixed, at_every_fragment=at_every_fragment)
    return backend


def mark_spaces(backend: tokenizers.Tokenizer, *, prefixed: bool, at_every_fragment: bool) -> None:
    """Spell spaces as sentencepiece does."""
    marks = [normalizers.Replace(" ", SPACE)]
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefixed:
        steps.append(decoders.Strip(" ", 1, 0))
    if prefixed and not at_every_fragment:
        backend.pre_tokenizer = splitters.Metaspace(replacement=SPACE, prepend_scheme="first", split=False)
    else:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), *marks] if prefixed else marks)
    backend.decoder = decoders.Sequence(steps)


def merges_from_scores(vocabulary: dict[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Return every way to build a token from two others, best score first.

    Ties are ordered as in transformers' converters, whose order the models' tokenizer.json files have.
    """
    merges = []
    for token, token_id in vocabulary.items():
        cuts = ((token[:i], token[i:]) for i in range(1, len(token)))
        pairs = [(left, right) for left, right in cuts if left in vocabulary and right in vocabulary]
        pairs.sort(key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
        merges += [(scores[token_id], len(left), len(right), left, right) for left, right in pairs]
    merges.sort(key=lambda merge: merge[:3], reverse=True)
    return [(left, right) for _, _, _, left, right in merges]


def add_tokens(backend: tokenizers.Tokenizer, special: Sequence[str], defined: Sequence[str]) -> None:
    """Make control and user-defined tokens match as a whole anywhere in a text; only control tokens are special."""
    backend.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in special])
    backend.add_tokens([AddedToken(text, normalized=False, special=False) for text in defined])
