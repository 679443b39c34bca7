"""The tokenizer of a GGUF file, built from the file's metadata."""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import tokenizers
from gguf.constants import Keys, TokenType
from numaserve.server.tokenizer.chat_template import ChatTemplate
from numaserve.server.tokenizer.files.gguf_encoders import unigram, wordpiece
from numaserve.server.tokenizer.files.gguf_vocabulary import Built, Metadata
from numaserve.server.tokenizer.files.sentencepiece import SPACE, Pieces, add_tokens, build
from numaserve.server.tokenizer.pre_tokenizers import pre_tokenization
from numaserve.server.tokenizer.tokenizer import Tokenizer
from numaserve.server.tokenizer.types import TokenizerError

# Control tokens that end a turn. Files name one end-of-sequence id, often that of the base model; llama.cpp also stops
# at these tokens.
_END_OF_TURN = ("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|endoftext|>", "<end_of_turn>")


def load_gguf(path: Path, chat_template: str | None = None) -> Tokenizer:
    """Return the tokenizer in the GGUF file at `path`. Raises `TokenizerError` if it cannot be built.

    `chat_template` replaces the file's own.
    """
    metadata = Metadata(path)
    model = metadata.scalar(Keys.Tokenizer.MODEL, str)
    if model not in _BUILDERS:
        raise metadata.error(
            f"the tokenizer model {model!r} is not supported; supported tokenizer models are "
            f"{', '.join(sorted(_BUILDERS))}"
        )
    # First: its process starts while the vocabulary is built.
    template = ChatTemplate.of(metadata.chat_template() if chat_template is None else chat_template)
    try:
        built = _BUILDERS[model](metadata)
    except TokenizerError:
        raise
    except Exception as error:  # the Rust library raises plain Exception, for example for a merge of unknown tokens
        raise metadata.error(str(error)) from error
    built.surround()
    return Tokenizer(
        built.backend,
        eos_token_ids=_end_ids(metadata),
        bos_token_id=metadata.token_id(Keys.Tokenizer.BOS_ID),
        eos_token_id=metadata.token_id(Keys.Tokenizer.EOS_ID),
        chat_template=template,
        vocab_size=len(metadata.tokens),
    )


def gguf_chat_template(path: Path) -> str | None:
    """Return the chat template in the GGUF file at `path`; None if it has none. Raises `TokenizerError`."""
    return Metadata(path).chat_template()


def _end_ids(metadata: Metadata) -> frozenset[int]:
    keys = (Keys.Tokenizer.EOS_ID, Keys.Tokenizer.EOT_ID, Keys.Tokenizer.EOM_ID)
    named = {token_id for key in keys if (token_id := metadata.token_id(key)) is not None}
    return frozenset(named | {i for i in metadata.of_type(TokenType.CONTROL) if metadata.tokens[i] in _END_OF_TURN})


def _byte_level(metadata: Metadata) -> Built:
    """Return byte-level BPE with the file's merges."""
    way = pre_tokenization(metadata.scalar(Keys.Tokenizer.PRE, str) or "default")
    merges = [cast(tuple[str, str], tuple(merge.split(" ", 1))) for merge in _merges_of(metadata)]
    vocabulary = {token: token_id for token_id, token in enumerate(metadata.tokens)}
    backend = way.tokenizer(vocabulary, merges)
    _add_tokens(backend, metadata, metadata.tokens)
    # RoBERTa is the one model of this architecture with such a tokenizer.
    separators = 2 if metadata.architecture == "bert" else 1
    return Built(backend, metadata.first(default=way.adds_bos), metadata.last(default=False), separators)


def _merges_of(metadata: Metadata) -> list[str]:
    merges = metadata.array(Keys.Tokenizer.MERGES, str)
    if not all(" " in merge for merge in merges):
        raise metadata.error("a merge rule of the vocabulary has only one part")
    return merges


def _sentencepiece(metadata: Metadata) -> Built:
    """Return sentencepiece BPE: merges follow from the scores, and text without a token falls back to byte tokens."""
    gemma = metadata.architecture.startswith("gemma")
    tokens = [SPACE * len(token) if gemma and token.isspace() and " " in token else token for token in metadata.tokens]
    # Gemma's scores do not follow its merge order; the order of its tokens does.
    scores: Sequence[float] = (
        [-i for i in range(len(tokens))] if gemma else metadata.array(Keys.Tokenizer.SCORES, float)
    )
    if len(scores) != len(tokens):
        raise metadata.error("the vocabulary does not have a score for every token")
    prefixed = not gemma and metadata.scalar(Keys.Tokenizer.ADD_PREFIX, bool) is not False
    pieces = Pieces(tokens, scores, metadata.types, metadata.token_id(Keys.Tokenizer.UNK_ID))
    backend = build(pieces, prefixed=prefixed, at_every_fragment=metadata.architecture == "phi3")
    _add_tokens(backend, metadata, tokens)
    return Built(backend, metadata.first(default=True), metadata.last(default=False))


def _add_tokens(backend: tokenizers.Tokenizer, metadata: Metadata, tokens: Sequence[str]) -> None:
    # A respelled token (see Gemma above) is reached by merges; its original spelling is not in the vocabulary.
    defined = [tokens[i] for i in metadata.of_type(TokenType.USER_DEFINED) if tokens[i] == metadata.tokens[i]]
    add_tokens(backend, [tokens[i] for i in metadata.of_type(TokenType.CONTROL)], defined)


_BUILDERS = {"gpt2": _byte_level, "llama": _sentencepiece, "bert": wordpiece, "t5": unigram}
