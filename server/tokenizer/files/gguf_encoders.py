"""The tokenizers of encoders in GGUF files: WordPiece, and sentencepiece unigrams."""

from typing import Literal

import tokenizers
from gguf.constants import Keys, TokenType
from numaserve.server.tokenizer.files.gguf_vocabulary import Built, Metadata
from numaserve.server.tokenizer.files.sentencepiece import SPACE, add_tokens
from tokenizers import decoders, models, normalizers
from tokenizers import pre_tokenizers as splitters

_CONTINUES = "##"  # before a part of a word that is not its first
_LONGEST_WORD = 100  # characters; a longer word is unknown
_CAPITALS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
# The package of this version has no names for these keys.
_LOWERCASE = "tokenizer.ggml.normalizer.lowercase"
_STRIP_ACCENTS = "tokenizer.ggml.normalizer.strip_accents"
_CLS_ID = "tokenizer.ggml.cls_token_id"


def wordpiece(metadata: Metadata) -> Built:
    """Return BERT's WordPiece. In the file words begin with U+2581, and parts after the first one with nothing."""
    special = set(metadata.of_type(TokenType.CONTROL))
    tokens = [text if i in special else _respelled(text) for i, text in enumerate(metadata.tokens)]
    vocabulary = {text: token_id for token_id, text in reversed(list(enumerate(tokens)))}

    def token_id(text: str, *keys: str) -> int:
        stated = (found for key in keys if (found := metadata.token_id(key)) is not None)
        if (found := next(stated, vocabulary.get(text))) is None:
            raise metadata.error(f"the vocabulary has no {text} token")
        return found

    unknown = tokens[token_id("[UNK]", Keys.Tokenizer.UNK_ID)]
    backend = tokenizers.Tokenizer(
        models.WordPiece(
            vocabulary,
            unk_token=unknown,
            max_input_chars_per_word=_LONGEST_WORD,
            continuing_subword_prefix=_CONTINUES,
        )
    )
    lowercase = metadata.scalar(_LOWERCASE, bool)
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=_is_uncased(tokens) if lowercase is None else lowercase,
        strip_accents=metadata.scalar(_STRIP_ACCENTS, bool),
    )
    backend.pre_tokenizer = splitters.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix=_CONTINUES)
    defined = [tokens[i] for i in metadata.of_type(TokenType.USER_DEFINED)]
    add_tokens(backend, [tokens[i] for i in sorted(special)], defined)
    first = token_id("[CLS]", Keys.Tokenizer.BOS_ID, _CLS_ID)
    # A file does not say which inputs its model takes. One that has a single type takes none.
    typed = metadata.scalar(Keys.Tokenizer.TOKEN_TYPE_COUNT, int) != 1
    return Built(backend, first, token_id("[SEP]", Keys.Tokenizer.SEP_ID), typed=typed)


def _respelled(text: str) -> str:
    return text[1:] if text.startswith(SPACE) and text != SPACE else f"{_CONTINUES}{text}"


def _is_uncased(tokens: list[str]) -> bool:
    """Return whether no word of the vocabulary has a capital letter. Older files do not state it; llama.cpp lowercases
    their texts always."""
    return not any(_CAPITALS.intersection(text) for text in tokens if not text.startswith("["))


def unigram(metadata: Metadata) -> Built:
    """Return XLM-R's sentencepiece unigrams, which cut a text at white space."""
    scores = metadata.array(Keys.Tokenizer.SCORES, float)
    normal = [score for score, kind in zip(scores, metadata.types, strict=False) if kind == TokenType.NORMAL]
    if len(scores) != len(metadata.tokens) or not normal:
        raise metadata.error("the vocabulary does not have a score for every token")
    if metadata.scalar(Keys.Tokenizer.REMOVE_EXTRA_WS, bool) is False:
        raise metadata.error("it keeps repeated spaces (remove_extra_whitespaces is false), which is not supported")
    unused, least = set(metadata.of_type(TokenType.UNUSED)), min(normal)
    # The lowest score decides what an unknown character costs. Tokens that are not used have lower ones in the file,
    # and no text has the space that is put after them.
    pieces = [
        (f"{text} ", least) if i in unused else (text, score)
        for i, (text, score) in enumerate(zip(metadata.tokens, scores, strict=True))
    ]
    unknown = metadata.of_type(TokenType.UNKNOWN)
    stated = metadata.token_id(Keys.Tokenizer.UNK_ID)
    backend = tokenizers.Tokenizer(
        models.Unigram(pieces, unk_id=next(iter(unknown), None) if stated is None else stated, byte_fallback=False)
    )
    characters = metadata.array(Keys.Tokenizer.PRECOMPILED_CHARSMAP, int)
    if characters:
        backend.normalizer = normalizers.Precompiled(bytes(value & 0xFF for value in characters))
    prefixed = metadata.scalar(Keys.Tokenizer.ADD_PREFIX, bool) is not False
    scheme: Literal["always", "never"] = "always" if prefixed else "never"
    words = splitters.Metaspace(replacement=SPACE, prepend_scheme=scheme)
    backend.pre_tokenizer = splitters.Sequence([splitters.WhitespaceSplit(), words])
    backend.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme=scheme)
    special = [metadata.tokens[i] for i in sorted({*metadata.of_type(TokenType.CONTROL), *unknown})]
    add_tokens(backend, special, [metadata.tokens[i] for i in metadata.of_type(TokenType.USER_DEFINED)])
    return Built(backend, metadata.first(default=True), metadata.last(default=True), separators=2)
