"""The check that a classifier has an embedding for each type that its tokenizer gives the tokens of a pair."""

import logging
from pathlib import Path

from numaserve.server.tokenizer.types import TokenizationError, TokenizerProtocol
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.models.spec import ModelConfig

_log = logging.getLogger(__name__)


def check_pair_types(tokenizer: TokenizerProtocol, model: ModelConfig, path: Path) -> None:
    """Raise `OperatorError` if the second text of a pair is of a type that the `model` at `path` lacks. transformers
    fails there at the first pair. Log that pairs have a single type if the model has more."""
    rows = model.decoder.embedding.token_types
    if not model.labels or not rows:
        return
    try:
        typed = tokenizer.pair_form().typed
    except TokenizationError:
        return  # pairs are refused with this error, and texts alone are served
    if typed and rows < 2:
        raise OperatorError(
            f"{path}: the tokenizer gives the second text of a pair the token type 1, but the model has only type 0 "
            f"(type_vocab_size is {rows}). Types must be below type_vocab_size. If the model was trained without "
            'types, set "model_input_names" to ["input_ids", "attention_mask"] in tokenizer_config.json; otherwise '
            "use another copy of the model"
        )
    if not typed and rows > 1:
        _log.info(
            "both texts of a pair have token type 0, as in transformers, because the tokenizer has no token_type_ids "
            "in model_input_names; the model has %d types",
            rows,
        )
