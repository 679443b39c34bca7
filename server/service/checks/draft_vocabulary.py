"""The check that a draft model has the vocabulary of the model."""

from pathlib import Path

from numaserve.server.tokenizer import load_tokenizer
from numaserve.server.tokenizer.types import TokenizerProtocol
from numaserve.workers.interface.errors import OperatorError


def check_vocabulary(tokenizer: TokenizerProtocol, draft: Path) -> None:
    """Raise `OperatorError` unless the draft model's tokens equal those of `tokenizer`, id by id.

    Only ids that both vocabularies have are compared: GGUF files also count embedding rows that no text maps to.
    """
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
