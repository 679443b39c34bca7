"""The vocabulary of a draft model, which has to be that of the model."""

from pathlib import Path

from numaserve.server.tokenizer import load_tokenizer
from numaserve.server.tokenizer.types import TokenizerProtocol
from numaserve.workers.errors import OperatorError


def check_vocabulary(tokenizer: TokenizerProtocol, draft: Path) -> None:
    """Raises `OperatorError` unless the draft model's tokens are those of `tokenizer`, number by number."""
    other = load_tokenizer(draft)
    try:
        counts = tokenizer.vocab_size, other.vocab_size
        differs = next(
            (each for each in range(min(counts)) if tokenizer.token_text(each) != other.token_text(each)), None
        )
    finally:
        other.close()
    if differs is None and counts[0] == counts[1]:
        return
    what = f"it has {counts[1]} tokens and not {counts[0]}" if differs is None else f"token {differs} is another one"
    raise OperatorError(
        f"--draft-model {draft}: its vocabulary is not the model's, {what}; take a smaller model of the same family"
    )
