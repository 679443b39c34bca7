"""Pre-tokenizations: the splits of a byte-level vocabulary's text before merging, by their names in GGUF files."""

from collections.abc import Callable
from dataclasses import dataclass

import tokenizers
from numaserve.server.tokenizer.types import TokenizerError
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

# The expressions are those in the models' own tokenizer.json.
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SUFFIX}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Runs of ideographs, and GPT-4o's words without them.
_KIMI_UPPER, _KIMI_LOWER = (rf"{letters[:-1]}&&[^\p{{Han}}]]" for letters in (_UPPER, _LOWER))
_KIMI_K2 = (
    rf"[\p{{Han}}]+|[^\r\n\p{{L}}\p{{N}}]?{_KIMI_UPPER}*{_KIMI_LOWER}+{_SUFFIX}"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_KIMI_UPPER}+{_KIMI_LOWER}*{_SUFFIX}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",  # ideographs and kana
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
# GPT-2's expression, as some files spell it out.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# Expressions that take time proportional to the length of the text, except for runs of spaces.
KNOWN_EXPRESSIONS = frozenset(
    {_GPT2, _LLAMA3, _QWEN2, _TEKKEN, _GPT4O, _KIMI_K2, *_DEEPSEEK3} | {r"\p{N}", r"\p{N}{1,3}", r"\s", r"\s+", " {2,}"}
)


@dataclass(frozen=True)
class PreTokenization:
    """The properties that a name in `tokenizer.ggml.pre` implies, in addition to the vocabulary."""

    build: Callable[[], pre_tokenizers.PreTokenizer]
    whole_words: bool = False  # a word that is a token is never built by merges (tokenizers: ignore_merges)
    adds_bos: bool = False  # unless the file says otherwise
    normalizer: normalizers.Normalizer | None = None

    def tokenizer(self, vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> tokenizers.Tokenizer:
        """Return byte-level BPE that splits texts in this way."""
        model = models.BPE(vocab=vocabulary, merges=merges, ignore_merges=self.whole_words)
        backend = tokenizers.Tokenizer(model)
        if self.normalizer is not None:
            backend.normalizer = self.normalizer
        backend.pre_tokenizer = self.build()
        backend.decoder = decoders.ByteLevel()
        return backend


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _single_digits() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _split_by(*expressions: str) -> Callable[[], pre_tokenizers.PreTokenizer]:
    return lambda: pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(each), behavior="isolated") for each in expressions),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


_GPT2_WAY = PreTokenization(_gpt2)
_LLAMA3_WAY = PreTokenization(_split_by(_LLAMA3), whole_words=True, adds_bos=True)
_DEEPSEEK3_WAY = PreTokenization(_split_by(*_DEEPSEEK3))
_QWEN2_WAY = PreTokenization(_split_by(_QWEN2), normalizer=normalizers.NFC())

KIMI_K2 = "kimi-k2"
_BY_NAME = {
    "default": _GPT2_WAY,
    "gpt-2": _GPT2_WAY,
    "roberta-bpe": _GPT2_WAY,
    "modern-bert": PreTokenization(_gpt2, normalizer=normalizers.NFC()),
    "smollm": PreTokenization(_single_digits),
    "refact": PreTokenization(_single_digits),  # Granite 3
    "llama3": _LLAMA3_WAY,
    "llama-v3": _LLAMA3_WAY,
    "llama-bpe": _LLAMA3_WAY,
    "falcon3": _LLAMA3_WAY,
    "lfm2": _LLAMA3_WAY,
    "pixtral": _LLAMA3_WAY,
    "smaug-bpe": PreTokenization(_split_by(_LLAMA3)),
    "dbrx": PreTokenization(_split_by(_LLAMA3)),  # Phi-4
    "glm4": PreTokenization(_split_by(_LLAMA3)),
    "deepseek-v3": _DEEPSEEK3_WAY,
    "hunyuan-dense": _DEEPSEEK3_WAY,
    "qwen2": _QWEN2_WAY,  # Qwen2, 2.5 and 3
    "deepseek-r1-qwen": _QWEN2_WAY,
    "tekken": PreTokenization(_split_by(_TEKKEN), whole_words=True, adds_bos=True),  # Mistral Nemo and later
    "gpt-4o": PreTokenization(_split_by(_GPT4O)),  # Phi-4-mini
    KIMI_K2: PreTokenization(_split_by(_KIMI_K2), whole_words=True),  # as tiktoken does
}


def pre_tokenization(name: str) -> PreTokenization:
    """Return the pre-tokenization called `name`. Raises `TokenizerError` for an unknown name."""
    if name not in _BY_NAME:
        raise TokenizerError(
            f"the pre-tokenizer {name[:100]!r} of this GGUF file is not supported; "
            "use the model's Hugging Face folder, which holds a tokenizer.json"
        )
    return _BY_NAME[name]
