"""Fill-in-the-middle prompts, for models that were trained with tokens for them."""

from dataclasses import dataclass

from numaserve.server.tokenizer.types import TokenizerProtocol

# The markers before the prefix, before the suffix and before the answer, from the models' cards.
_MARKERS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen2.5-Coder, Qwen3-Coder, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"),  # DeepSeek-Coder
)


@dataclass(frozen=True)
class FillIn:
    """The tokens around the texts."""

    begin: list[int]  # tokens that begin any text
    prefix: int
    suffix: int
    middle: int

    def prompt(self, prefix: list[int], suffix: list[int]) -> list[int]:
        """Return the prompt whose answer is the missing text between `prefix` and `suffix`."""
        return [*self.begin, self.prefix, *prefix, self.suffix, *suffix, self.middle]


def fill_in_of(tokenizer: TokenizerProtocol) -> FillIn | None:
    """Return the fill-in tokens of this tokenizer; None where it has none."""
    for markers in _MARKERS:
        encoded = [tokenizer.encode(marker, add_special_tokens=False) for marker in markers]
        if all(len(tokens) == 1 for tokens in encoded):
            return FillIn(tokenizer.encode(""), *(tokens[0] for tokens in encoded))
    return None
