"""The tokenizer of a sentencepiece model, the `tokenizer.model` of a folder without a tokenizer.json.

The file is a protocol buffer with the fields of sentencepiece_model.proto, https://github.com/google/sentencepiece.
This module parses the few fields that are needed: the library would be another dependency of every server.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import tokenizers
from numaserve.server.tokenizer.files.sentencepiece import Pieces, PieceType, add_tokens, build
from numaserve.server.tokenizer.types import TokenizerError
from numaserve.workers.interface.files import TOKENIZER_BYTES, read_file
from tokenizers import normalizers

_BPE = 2
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_LENGTHS = {_FIXED64: 8, _FIXED32: 4}
_MAX_VARINT_BYTES = 10

_Value = int | bytes


@dataclass
class SentencepieceModel:
    """The contents of a file."""

    texts: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    types: list[int] = field(default_factory=list)
    kind: int = 1  # unigram, sentencepiece's default
    unknown: int = 0
    bos: int = 1
    eos: int = 2
    characters: bytes = b""  # a table of the normalization of each character
    prefixed: bool = True
    single_spaces: bool = True

    def text_of(self, token_id: int) -> str | None:
        """Return the text of a special token's id; None for a negative id, which means that there is none."""
        return self.texts[token_id] if 0 <= token_id < len(self.texts) else None


def read_model(path: Path) -> SentencepieceModel:
    """Return the model in the file at `path`. Raises `TokenizerError` if it is not a sentencepiece model or not BPE."""
    model = SentencepieceModel()
    try:
        for number, value in _fields(_bytes(read_file(path, TOKENIZER_BYTES))):
            match number:
                case 1:
                    _read_piece(model, _bytes(value))
                case 2:
                    _read_trainer(model, _bytes(value))
                case 3:
                    _read_normalizer(model, _bytes(value))
    except (ValueError, IndexError, struct.error) as error:
        raise TokenizerError(
            f"{path} is not a sentencepiece model ({error}), and there is no tokenizer.json; download the model again, "
            "or create tokenizer.json with transformers.AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        ) from error
    if model.kind != _BPE or not model.texts:
        raise TokenizerError(
            f"{path} is a sentencepiece model of a kind other than BPE, which cannot be converted; create a "
            "tokenizer.json with transformers.AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    return model


def backend_of(model: SentencepieceModel) -> tokenizers.Tokenizer:
    """Return the tokenizer that the file describes."""
    unknown = model.unknown if model.text_of(model.unknown) is not None else None
    pieces = Pieces(model.texts, model.scores, model.types, unknown)
    backend = build(pieces, prefixed=model.prefixed)
    steps: list[normalizers.Normalizer] = []
    if model.characters:
        steps.append(normalizers.Precompiled(model.characters))
    if model.single_spaces:
        steps += [normalizers.Strip(), normalizers.Replace(tokenizers.Regex(" {2,}"), " ")]
    if steps:
        backend.normalizer = normalizers.Sequence([*steps, *([backend.normalizer] if backend.normalizer else [])])
    special, defined = (
        [model.texts[token_id] for token_id in pieces.of_type(kind)]
        for kind in (PieceType.CONTROL, PieceType.USER_DEFINED)
    )
    add_tokens(backend, special, defined)
    return backend


def _read_piece(model: SentencepieceModel, message: bytes) -> None:
    text, score, kind = "", 0.0, int(PieceType.NORMAL)
    for number, value in _fields(message):
        match number:
            case 1:
                text = _bytes(value).decode()
            case 2:
                (score,) = struct.unpack("<f", _bytes(value))
            case 3:
                kind = _integer(value)
    model.texts.append(text)
    model.scores.append(score)
    model.types.append(kind)


def _read_trainer(model: SentencepieceModel, message: bytes) -> None:
    for number, value in _fields(message):
        match number:
            case 3:
                model.kind = _integer(value)
            case 40:
                model.unknown = _signed(value)
            case 41:
                model.bos = _signed(value)
            case 42:
                model.eos = _signed(value)


def _read_normalizer(model: SentencepieceModel, message: bytes) -> None:
    for number, value in _fields(message):
        match number:
            case 2:
                model.characters = _bytes(value)
            case 3:
                model.prefixed = bool(_integer(value))
            case 4:
                model.single_spaces = bool(_integer(value))


def _fields(message: bytes) -> Iterator[tuple[int, _Value]]:
    """Yield the fields of a message with their numbers. https://protobuf.dev/programming-guides/encoding/"""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if wire == _BYTES:
            length, at = _varint(message, at)
        elif wire in _LENGTHS:
            length = _LENGTHS[wire]
        else:
            raise ValueError(f"a field has the unsupported wire type {wire}")
        if at + length > len(message):
            raise ValueError("a field extends past the end of the file")
        yield number, message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index in range(_MAX_VARINT_BYTES):
        byte = message[at + index]
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, at + index + 1
    raise ValueError("a number has more than ten bytes")


def _bytes(value: _Value) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("found a number instead of a string")
    return value


def _integer(value: _Value) -> int:
    if not isinstance(value, int):
        raise ValueError("found a string instead of a number")
    return value


def _signed(value: _Value) -> int:
    integer = _integer(value) & 0xFFFFFFFF
    return integer - (1 << 32) if integer >> 31 else integer
