"""A chat template that the operator gives instead of the model's own."""

from __future__ import annotations

from pathlib import Path

from numaserve.server.cli.text_file import read_text_file
from numaserve.server.tokenizer import load_tokenizer
from numaserve.server.tokenizer.tokenizer import Tokenizer
from numaserve.server.tokenizer.types import ChatTemplateError, ChatTemplateUnavailable
from numaserve.workers.errors import OperatorError

_MAX_BYTES = 4 << 20


def load_tokenizer_with(model: Path, template: Path | None) -> Tokenizer:
    """The tokenizer of the model at `model`, with the chat template in the file `template` if one is named.

    Raises `TokenizerError` as `load_tokenizer` does, and `OperatorError` for a file that cannot be read or does not
    compile.
    """
    if template is None:
        return load_tokenizer(model)
    tokenizer = load_tokenizer(model, read_text_file(template, "the chat template", _MAX_BYTES))
    try:
        tokenizer.check_chat_template()
    except (ChatTemplateError, ChatTemplateUnavailable) as error:
        raise OperatorError(f"the chat template {template} cannot be used: {error}") from None
    return tokenizer
