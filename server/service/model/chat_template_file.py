"""The tokenizer of a model, with the model's own chat template or with one from the operator."""

from pathlib import Path

from numaserve.server.tokenizer import load_tokenizer
from numaserve.server.tokenizer.tokenizer import Tokenizer
from numaserve.server.tokenizer.types import ChatTemplateError, ChatTemplateUnavailable
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.files import TEMPLATE_BYTES, read_text


def load_tokenizer_with(model: Path, template: Path | None) -> Tokenizer:
    """Return the tokenizer of the model at `model`, with the chat template in the file `template` if given.

    Raises `TokenizerError` as `load_tokenizer` does. Raises `OperatorError` for a file that cannot be read and for a
    template that does not compile.
    """
    tokenizer = load_tokenizer(model, None if template is None else read_text(template, TEMPLATE_BYTES))
    try:
        tokenizer.check_chat_template()
    except (ChatTemplateError, ChatTemplateUnavailable) as error:
        which = f"of {model}" if template is None else str(template)
        hint = ". Name another template with --chat-template" if template is None else ""
        raise OperatorError(f"the chat template {which} cannot be used: {error}{hint}") from None
    return tokenizer
