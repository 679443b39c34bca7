"""The vocabulary of a draft model, which has to be that of the model."""

from pathlib import Path

from numaserve.server.tokenizer import load_tokenizer
from numaserve.server.tokenizer.types import TokenizerProtocol
from numaserve.workers.interface.errors import OperatorError


def check_vocabulary(tokenizer: TokenizerProtocol, draft: Path) -> None:
    """Raises `OperatorError` unless the draft model's tokens are those of `tokenizer`, number by number, as far as both
    have some: GGUF files count rows of the embedding that no text leads to."""
    other = load_tokenizer(draft)
    try:
        both = range(min(tokenizer.vocab_size, other.vocab_size))
        differs = next((each for each in both if tokenizer.token_text(each) != other.token_text(each)), None)
    finally:
        other.close()
    if differs is not None:
        raise OperatorError(
            f"--draft-model {draft}: the vocabulary differs from the model's vocabulary at token {differs}. Use a "
            "smaller model of the same family"
        )
