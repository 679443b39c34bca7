"""Text between two others: what models trained for it have tokens for."""

from dataclasses import dataclass

from numaserve.server.tokenizer.types import TokenizerProtocol

# What stands before the prefix, before the suffix and before the answer, as the models' cards tell.
_MARKERS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen2.5-Coder, Qwen3-Coder, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"),  # DeepSeek-Coder
)


@dataclass(frozen=True)
class FillIn:
    """The tokens that stand around the texts."""

    begin: list[int]  # what begins any text
    prefix: int
    suffix: int
    middle: int

    def prompt(self, prefix: list[int], suffix: list[int]) -> list[int]:
        """The prompt of which the answer is what is missing between both."""
        return [*self.begin, self.prefix, *prefix, self.suffix, *suffix, self.middle]


def fill_in_of(tokenizer: TokenizerProtocol) -> FillIn | None:
    """The tokens of this tokenizer; None where it has none."""
    for markers in _MARKERS:
        encoded = [tokenizer.encode(marker, add_special_tokens=False) for marker in markers]
        if all(len(tokens) == 1 for tokens in encoded):
            return FillIn(tokenizer.encode(""), *(tokens[0] for tokens in encoded))
    return None
