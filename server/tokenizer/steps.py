"""The steps of tokenizers, as described by their files, and the steps with bounded time for any text.

A file may list any number of steps: 40 replacements that each double a letter make a terabyte of one character, and a
regular expression may try all ways to split a text. Only the end of its process stops the library.
"""

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import tokenizers
from numaserve.server.tokenizer.pre_tokenizers import KNOWN_EXPRESSIONS

_Step = dict[str, Any]

# Growth of a text by its replacements. Sentencepiece adds a space before it and writes U+2581 for each space: 4 x 3.
_MOST_GROWTH = 16
_MOST_TOKENS_AROUND = 16  # tokens that a post-processor adds
# Each at most once: some expand one character to several.
_NORMALIZERS = frozenset(
    {"NFC", "NFD", "NFKC", "NFKD", "Nmt", "Lowercase", "StripAccents", "Strip", "BertNormalizer", "ByteLevel"}
    | {"Precompiled"}
)
_PRE_TOKENIZERS = frozenset(
    {"ByteLevel", "Metaspace", "Whitespace", "WhitespaceSplit", "Digits", "Punctuation", "BertPreTokenizer"}
    | {"UnicodeScripts", "CharDelimiterSplit", "FixedLength"}
)
_POST_PROCESSORS = frozenset({"ByteLevel", "BertProcessing", "RobertaProcessing"})
_DECODERS = frozenset({"ByteLevel", "ByteFallback", "Fuse", "Strip", "Metaspace", "WordPiece"})
_MODELS = frozenset({"BPE", "Unigram", "WordLevel"})
_LONGEST_WORD = 256  # characters; BERT's vocabularies declare 100


def all_are_bounded(backend: tokenizers.Tokenizer) -> bool:
    """Return whether the number of steps is bounded, and each step takes time and memory proportional to the text."""
    return (
        _is_bounded(backend.model)
        and _are_bounded(backend.normalizer, "normalizers", _NORMALIZERS, _replaces)
        and _are_bounded(backend.pre_tokenizer, "pretokenizers", _PRE_TOKENIZERS, _splits)
        and _are_bounded(backend.post_processor, "processors", _POST_PROCESSORS, _surrounds)
        and _are_bounded(backend.decoder, "decoders", _DECODERS, _replaces)
    )


def _is_bounded(model: tokenizers.models.Model) -> bool:
    """Return whether the model is of a bounded kind. WordPiece looks up all parts of a word, up to a length that its
    file declares."""
    if isinstance(model, tokenizers.models.WordPiece):
        return int(model.max_input_chars_per_word) <= _LONGEST_WORD
    return type(model).__name__ in _MODELS


def _are_bounded(part: Any, list_name: str, known: frozenset[str], others: Callable[[Sequence[_Step]], bool]) -> bool:
    """Return whether all steps of a part are of `known` kinds, each at most once, or are bounded according to
    `others`."""
    if part is None:
        return True
    # The pickle state of a part is its JSON.
    steps = _flat(json.loads(part.__getstate__()), list_name)
    kinds = [step["type"] for step in steps if step["type"] in known]
    return len(kinds) == len(set(kinds)) and others([step for step in steps if step["type"] not in known])


def _flat(step: _Step, list_name: str) -> list[_Step]:
    if step["type"] != "Sequence":
        return [step]
    return [each for inner in step[list_name] for each in _flat(inner, list_name)]


def _replaces(steps: Sequence[_Step]) -> bool:
    """Return whether the steps only prepend and replace texts, with bounded growth."""
    return math.prod(map(_growth, steps)) <= _MOST_GROWTH


def _growth(step: _Step) -> float:
    match step:
        case {"type": "Prepend", "prepend": str(added)}:
            return 1 + len(added.encode())
        case {"type": "Replace", "pattern": {"String": str(pattern)}, "content": str(content)} if pattern:
            return max(1.0, len(content.encode()) / len(pattern.encode()))
        case {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": str(content)}:
            return max(1.0, len(content.encode()) / 2)
    return math.inf


def _splits(steps: Sequence[_Step]) -> bool:
    """Return whether the steps split a text only at texts or by known expressions."""
    return all(step["type"] == "Split" and _is_known(step["pattern"]) for step in steps)


def _is_known(pattern: dict[str, str]) -> bool:
    return bool(pattern.get("String")) or pattern.get("Regex") in KNOWN_EXPRESSIONS


def _surrounds(steps: Sequence[_Step]) -> bool:
    """Return whether the steps only put some tokens around a text, which they write once."""
    if not steps:
        return True
    if len(steps) > 1 or steps[0]["type"] != "TemplateProcessing":
        return False
    single = steps[0]["single"]
    return len(single) <= _MOST_TOKENS_AROUND and sum("Sequence" in each for each in single) <= 1
