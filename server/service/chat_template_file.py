"""A chat template that the operator gives instead of the model's own."""

from pathlib import Path

from numaserve.server.tokenizer import load_tokenizer
from numaserve.server.tokenizer.tokenizer import Tokenizer
from numaserve.server.tokenizer.types import ChatTemplateError, ChatTemplateUnavailable
from numaserve.workers.errors import OperatorError
from numaserve.workers.files import TEMPLATE_BYTES, read_text


def load_tokenizer_with(model: Path, template: Path | None) -> Tokenizer:
    """The tokenizer of the model at `model`, with the chat template in the file `template` if one is named.

    Raises `TokenizerError` as `load_tokenizer` does, and `OperatorError` for a file that cannot be read or does not
    compile.
    """
    if template is None:
        return load_tokenizer(model)
    tokenizer = load_tokenizer(model, read_text(template, TEMPLATE_BYTES))
    try:
        tokenizer.check_chat_template()
    except (ChatTemplateError, ChatTemplateUnavailable) as error:
        raise OperatorError(f"the chat template {template} cannot be used: {error}") from None
    return tokenizer
