"""GGUF files with the tokenizers of encoders, as llama.cpp's converter writes them, without tensors."""

import json
from pathlib import Path
from typing import Any

import gguf
import sentencepiece
import tokenizers
from gguf import TokenType
from sentencepiece import sentencepiece_model_pb2
from tokenizers import normalizers

from tests.support.gguf_files import finish
from tests.support.tokenizer_builders import SAMPLES

_NORMALIZER = "tokenizer.ggml.normalizer."


def write_wordpiece_gguf(path: Path, backend: tokenizers.Tokenizer, types: int | None = None, **flags: bool) -> Path:
    """Write BERT's tokenizer, which may state the number of types. `flags` are as for `add_wordpiece`."""
    writer = gguf.GGUFWriter(path, "bert")
    if types is not None:
        writer.add_token_type_count(types)
    add_wordpiece(writer, backend, **flags)
    finish(writer)
    return path


def add_wordpiece(writer: gguf.GGUFWriter, backend: tokenizers.Tokenizer, **flags: bool) -> None:
    """Add BERT's tokenizer. `flags` are those of its normalizer; older files have none, and only the id of [CLS]."""
    tokens = sorted(backend.get_vocab(), key=backend.get_vocab().__getitem__)
    special = {token for token in tokens if token.startswith("[")}
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("jina-v2-en")
    writer.add_token_list([token if token in special else _phantom(token) for token in tokens])
    writer.add_token_types([TokenType.CONTROL if token in special else TokenType.NORMAL for token in tokens])
    if flags:
        for flag, value in flags.items():
            writer.add_bool(f"{_NORMALIZER}{flag}", value)
        writer.add_bos_token_id(tokens.index("[CLS]"))
        writer.add_sep_token_id(tokens.index("[SEP]"))
        writer.add_unk_token_id(tokens.index("[UNK]"))
    else:
        writer.add_uint32("tokenizer.ggml.cls_token_id", tokens.index("[CLS]"))


def _phantom(token: str) -> str:
    return token[2:] if token.startswith("##") else f"\u2581{token}"


def with_case(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """BERT's tokenizer with words in capitals, which are kept."""
    definition: dict[str, Any] = json.loads(backend.to_str())
    vocabulary = definition["model"]["vocab"]
    for token in ("The", "G", "##E", "IT"):
        vocabulary[token] = len(vocabulary)
    cased = tokenizers.Tokenizer.from_str(json.dumps(definition))
    cased.normalizer = normalizers.BertNormalizer(lowercase=False)
    return cased


def write_unigram_folder(folder: Path) -> Path:
    """Write `sentencepiece.bpe.model`, the vocabulary of XLM-R's tokenizer."""
    text = folder / "text"
    text.write_text("\n".join(line for sample in SAMPLES[:4] for line in sample.splitlines() if line.strip()))
    sentencepiece.SentencePieceTrainer.train(
        input=str(text),
        model_prefix=str(folder / "sentencepiece.bpe"),
        vocab_size=120,
        hard_vocab_limit=False,
        model_type="unigram",
        normalization_rule_name="nmt_nfkc",
        minloglevel=2,
    )
    return folder


def write_unigram_gguf(path: Path, folder: Path, unused: int = 7, **flags: bool) -> Path:
    """Write XLM-R's tokenizer, with `unused` tokens after those of the model in `folder`. `flags` are metadata."""
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString((folder / "sentencepiece.bpe.model").read_bytes())
    # As in transformers: other special tokens in front of the pieces, and a mask after them.
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *(piece.piece for piece in model.pieces[3:]), "<mask>"]
    scores = [0.0] * 4 + [piece.score for piece in model.pieces[3:]] + [0.0]
    types = [TokenType.CONTROL] * 3 + [TokenType.UNKNOWN]
    types += [TokenType.NORMAL] * (len(tokens) - 5) + [TokenType.CONTROL]
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_tokenizer_model("t5")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([*tokens, *(f"[PAD{index}]" for index in range(unused))])
    writer.add_token_scores([*scores, *[-10000.0] * unused])
    writer.add_token_types([*types, *[TokenType.UNUSED] * unused])
    writer.add_precompiled_charsmap(model.normalizer_spec.precompiled_charsmap)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(3)
    writer.add_add_space_prefix(True)
    for flag, value in ({"remove_extra_whitespaces": True} | flags).items():
        writer.add_bool(f"tokenizer.ggml.{flag}", value)
    finish(writer)
    return path
